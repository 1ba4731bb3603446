"""The faults that a batch service is known to die of, by number. A test says which one its line is about."""

from __future__ import annotations

FAULTS = {
    1: "kill -9 of workers in the middle of shards",
    2: "the broker killed and restarted empty",
    3: "kill -9 of an idle worker that has a message in its hands",
    4: "a worker frozen past its lease, then thawed",
    5: "the database stopped without a checkpoint and restarted",
    6: "the broker away at the submission",
    7: "the broker cut off without a word, and healed",
    8: "the broker out of memory",
    9: "SIGTERM while a shard runs",
    10: "a second SIGTERM, SIGINT",
    11: "cancel and expiry at any moment",
    12: "a row that kills the process",
    13: "a row that raises or hangs",
    14: "no memory for the model",
    15: "a full disk",
    16: "a crash between the part and the ledger",
    17: "two workers on one shard",
    18: "one idempotency key at the same instant",
    19: "1,000 submissions at once",
    20: "a clock that is hours off",
    21: "an object store that fails, stalls and loses replies",
    22: "broken input files",
    23: "row groups and files of awkward sizes",
    24: "addresses that lead out",
    25: "schedules over the change of clocks and over outages",
    26: "a scheduled run longer than its period",
    27: "the API killed between the ledger and the message",
    28: "an upgrade with jobs under way",
    29: "many jobs under random faults",
    30: "an urgent job behind a backlog",
}

# The faults whose tests belong to the default suite. Each run of the fault suite runs them too.
ELSEWHERE = {
    24: ("tests/api/test_escapes.py", "tests/db/test_uris.py", "tests/db/test_s3_uris.py"),
    25: ("tests/db/test_timetable.py", "tests/db/test_schedulers.py"),
    26: ("tests/db/test_firing.py",),
}
