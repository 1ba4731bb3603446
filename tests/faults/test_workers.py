"""Workers that are killed, frozen, asked to leave, or given what kills them."""

from __future__ import annotations

import contextlib
import sqlite3
import subprocess
import time
from collections.abc import Callable

import pyarrow.parquet as pq
import pytest
from sqlalchemy import select

from db.models import JobStatus, Shard
from tests.faults.rig import Outcome, Rig, read
from tests.faults.servers import eventually, freeze, thaw
from tests.faults.tally import Report

pytestmark = pytest.mark.faults
RigOn = Callable[..., Rig]


def completed(rig: Rig, num_rows: int) -> Outcome:
    job = rig.wait()
    assert (job.status, job.rows_succeeded) == (JobStatus.COMPLETED, num_rows), rig.crew.log.read_text()[-4000:]
    outcome = rig.check(num_rows)
    names = {path.name for path in rig.output().iterdir() if not path.name.startswith("part-")}
    assert names == {"_SUCCESS", "_manifest.json"}
    return outcome


@pytest.mark.parametrize("database", ["sqlite", "postgres"])
def test_kill_9_of_workers(rig_on: RigOn, report: Report, database: str, request: pytest.FixtureRequest) -> None:
    rig = rig_on(request.getfixturevalue("own_postgres") if database == "postgres" else "")
    rig.submit(3000)
    rig.hire(2)
    slowest = 0.0
    for _ in range(5):
        rig.wait_rows(rig.done() + rig.random.randrange(100, 300))
        before = rig.done()
        rig.kill(rig.random.randrange(2))
        started = time.monotonic()
        rig.wait_rows(before + 1)
        slowest = max(slowest, time.monotonic() - started)
    outcome = completed(rig, 3000)
    report.add(f"5 times, {database}", outcome, slowest, number=1)
    assert outcome.redone < 5 * 60


def freeze_between_transactions(rig: Rig, process: subprocess.Popen[bytes]) -> None:
    """A process that is frozen inside a transaction keeps SQLite's one write lock, and everybody waits for it."""
    while True:
        freeze(process)
        with contextlib.closing(sqlite3.connect(rig.home / "ledger.db", timeout=1)) as ledger:
            try:
                ledger.execute("BEGIN IMMEDIATE")
                return
            except sqlite3.OperationalError:
                thaw(process)
                time.sleep(0.05)


def test_a_worker_frozen_past_its_lease_and_thawed(rig_on: RigOn, report: Report) -> None:
    rig = rig_on()
    rig.submit(1000)
    rig.hire()
    rig.wait_rows(100)
    zombie = rig.crew.processes[0]
    freeze_between_transactions(rig, zombie)
    before = rig.done()
    started = time.monotonic()
    rig.hire()
    rig.wait_rows(before + 50)
    seconds = time.monotonic() - started
    thaw(zombie)
    report.add("SIGSTOP, SIGCONT once another worker goes on", completed(rig, 1000), seconds, number=4)
    assert zombie.poll() is None


def test_an_idle_worker_killed_with_a_message_in_its_hands(rig_on: RigOn, report: Report) -> None:
    """The broker has given the message away; only the ledger knows that the work is not done."""
    rig = rig_on()
    rig.hire()
    eventually(lambda: "worker ready" in rig.crew.log.read_text(), "the worker is ready", 180)
    freeze(rig.crew.processes[0])
    rig.submit(300)
    rig.kill()
    started = time.monotonic()
    rig.wait_rows(1)
    seconds = time.monotonic() - started
    report.add("frozen before the submission, killed after it", completed(rig, 300), seconds, number=3)


def test_rolling_restarts_by_sigterm(rig_on: RigOn, report: Report) -> None:
    rig = rig_on()
    rig.submit(2500)
    rig.hire()
    slowest = 0.0
    for _ in range(4):
        rig.wait_rows(rig.done() + 150)
        worker = rig.crew.processes.pop()
        started = time.monotonic()
        worker.terminate()
        assert worker.wait(60) == 0
        slowest = max(slowest, time.monotonic() - started)
        with rig.office.sessions.begin() as session:
            assert set(session.scalars(select(Shard.attempts).where(Shard.owner.is_(None), Shard.part.is_(None)))) <= {
                0
            }
        rig.hire()
    report.add("4 rolling restarts (seconds until it has left)", completed(rig, 2500), slowest, number=9)


@pytest.mark.parametrize(
    ("word", "number", "what"),
    [("kill", 12, "kill -9 of its own process"), ("hang", 13, "the engine hangs"), ("raise", 13, "the engine raises")],
)
def test_rows_that_end_the_engine(rig_on: RigOn, report: Report, word: str, number: int, what: str) -> None:
    rig = rig_on(hang_seconds=1, max_attempts=3)
    texts = [f"{word} {i}" if i == 83 else f"job row {i}" for i in range(300)]
    rig.submit(300, texts=texts, model="fake:poison")
    rig.hire()
    started = time.monotonic()
    while not rig.office.job().status.terminal:
        if rig.crew.processes[-1].poll() is not None:
            rig.crew.processes.pop()
            rig.hire()
        assert time.monotonic() - started < 600, rig.crew.log.read_text()[-4000:]
        time.sleep(0.1)
    job = rig.office.job()
    assert (job.status, job.rows_succeeded, job.rows_failed) == (JobStatus.COMPLETED_WITH_ERRORS, 299, 1)
    rows = read(output := rig.output()).to_pylist()
    assert [row["id"] for row in rows if row["error"] is not None] == [83]
    assert rows[83]["error"]["code"] == "engine_crash"
    assert [row["output"] for row in rows if row["id"] != 83] == [f"JOB ROW {i}" for i in range(300) if i != 83]
    (letters,) = (output / "_errors").glob("part-*.parquet")
    assert pq.read_table(letters)["text"].to_pylist() == [f"{word} 83"]
    again = sum(count - 1 for count in rig.computed().values())
    what = f"{what} (seconds until the job ends)"
    report.add(what, Outcome(300, 0, 0, again), time.monotonic() - started, number=number)
