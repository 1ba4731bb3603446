"""The lease protocol: one holder, fences, attempts, and totals that add up."""

from __future__ import annotations

import pytest
from sqlalchemy.exc import IntegrityError

from db import control, dispatch, shards
from db.dispatch import Wakeup
from db.models import JobStatus, ShardStatus
from db.progress import Progress, progress
from db.shards import Beat, Claim, Finish, PartFile
from tests.db.ledger import SPEC, Sessions, add_job, claim, expire, finish, job, shard, statuses, take, together


def test_a_claim_carries_all_that_the_work_needs(sessions: Sessions) -> None:
    ids = add_job(sessions, num_shards=2)
    assert take(sessions, ids[1], owner="host:1") == Claim(
        shard_id=ids[1], job_id="j", index=1, file="/data/in.parquet", start_row=10, stop_row=20, first_row=10,
        fence=1, attempts=1, spec=SPEC, output_uri="/out/j", tenant="default", prepared={"prior": [0.5]},
    )  # fmt: skip
    held = shard(sessions, ids[1])
    assert (held.status, held.owner, held.fence) == (ShardStatus.RUNNING, "host:1", 1)


def test_the_first_claim_says_since_when_the_job_runs(sessions: Sessions) -> None:
    ids = add_job(sessions, num_shards=2)
    assert job(sessions).running_at is None
    take(sessions, ids[0])
    since = job(sessions).running_at
    started = job(sessions).started_at
    assert since is not None
    assert started is not None
    assert since >= started
    take(sessions, ids[1])
    assert job(sessions).running_at == since


def test_a_done_shard_keeps_the_engines_counters(sessions: Sessions) -> None:
    (shard_id,) = add_job(sessions)
    taken = take(sessions, shard_id)
    part = PartFile("part-00000.parquet", 1, "0" * 64)
    with sessions.begin() as session:
        shards.finish(session, taken, progress=Progress(10), part=part, counters={"steps": 7, "mask_seconds": 0.5})
    assert shard(sessions, shard_id).counters == {"steps": 7, "mask_seconds": 0.5}


def test_16_threads_claim_a_shard_and_one_gets_it(sessions: Sessions) -> None:
    (shard_id,) = add_job(sessions)
    claims = [c for c in together(16, lambda n: claim(sessions, shard_id, owner=f"w{n}")) if c is not None]
    assert [(c.fence, c.attempts) for c in claims] == [(1, 1)]


def test_16_threads_claim_a_shard_with_a_dead_lease_and_one_gets_it(sessions: Sessions) -> None:
    (shard_id,) = add_job(sessions)
    take(sessions, shard_id)
    expire(sessions, shard_id)
    claims = [c for c in together(16, lambda n: claim(sessions, shard_id, owner=f"w{n}")) if c is not None]
    assert [(c.fence, c.attempts) for c in claims] == [(2, 2)]


def test_a_live_lease_is_left_alone_and_a_dead_one_taken(sessions: Sessions) -> None:
    (shard_id,) = add_job(sessions)
    first = take(sessions, shard_id, owner="first")
    assert claim(sessions, shard_id, owner="second") is None
    expire(sessions, shard_id)
    with sessions.begin() as session:
        assert shards.beat(session, first, lease_seconds=60, progress=Progress(3)) is Beat.OK
    assert claim(sessions, shard_id, owner="second") is None
    expire(sessions, shard_id)
    second = take(sessions, shard_id, owner="second")
    assert (second.fence, second.attempts) == (2, 2)
    with sessions.begin() as session:
        assert progress(session, ["j"]) == {"j": Progress()}


def test_a_zombie_changes_nothing(sessions: Sessions) -> None:
    (shard_id,) = add_job(sessions)
    zombie = take(sessions, shard_id, owner="zombie")
    expire(sessions, shard_id)
    holder = take(sessions, shard_id, owner="holder")
    with sessions.begin() as session:
        assert shards.beat(session, zombie, lease_seconds=999, progress=Progress(9)) is Beat.LOST
        assert not shards.release(session, zombie)
        assert not shards.retry(session, zombie, code="c", message="m", max_attempts=1)
        assert not shards.cancelled(session, zombie)
    assert finish(sessions, zombie) == Finish(accepted=False, last=False)
    held = shard(sessions, shard_id)
    assert (held.status, held.owner, held.fence, held.attempts) == (ShardStatus.RUNNING, "holder", 2, 2)
    assert (held.rows_succeeded, held.error_code, held.part) == (0, None, None)
    assert finish(sessions, holder) == Finish(accepted=True, last=True)
    assert finish(sessions, holder) == Finish(accepted=False, last=False)
    assert job(sessions).rows_succeeded == 10


def test_release_gives_back_without_counting_the_attempt(sessions: Sessions) -> None:
    (shard_id,) = add_job(sessions)
    for fence in range(1, 6):
        taken = take(sessions, shard_id)
        assert (taken.fence, taken.attempts) == (fence, 1)
        with sessions.begin() as session:
            assert shards.release(session, taken)
    given = shard(sessions, shard_id)
    assert (given.status, given.attempts, given.owner, given.dispatched_at) == (ShardStatus.PENDING, 0, None, 0.0)


def test_release_in_a_cancelling_job_leaves_the_shard_to_be_closed(sessions: Sessions) -> None:
    (shard_id,) = add_job(sessions)
    taken = take(sessions, shard_id)
    with sessions.begin() as session:
        control.cancel(session, "j", "default")
        assert shards.release(session, taken)
        assert dispatch.due(session, window=1, redispatch_seconds=60) == [Wakeup("run", shard_id)]
    assert statuses(sessions) == [ShardStatus.PENDING]


def test_retries_run_out_and_fail_the_job_with_the_reason(sessions: Sessions) -> None:
    ids = add_job(sessions, num_shards=3)
    neighbour = take(sessions, ids[2])
    for attempt in (1, 2):
        taken = take(sessions, ids[1])
        assert taken.attempts == attempt
        with sessions.begin() as session:
            assert shards.retry(session, taken, code="corrupt_data", message="bad page", max_attempts=2)
    assert statuses(sessions) == [ShardStatus.CANCELLED, ShardStatus.FAILED, ShardStatus.CANCELLED]
    failed, ended = shard(sessions, ids[1]), job(sessions)
    assert (failed.error_code, failed.error_message) == ("corrupt_data", "bad page")
    assert (ended.status, ended.error_code, ended.error_message) == (
        JobStatus.FAILED, "corrupt_data", "shard 1: bad page"
    )  # fmt: skip
    assert finish(sessions, neighbour) == Finish(accepted=False, last=False)


def test_deaths_run_out_of_attempts_and_fail_the_job(sessions: Sessions) -> None:
    (shard_id,) = add_job(sessions)
    for attempt in (1, 2):
        assert take(sessions, shard_id).attempts == attempt
        expire(sessions, shard_id)
    zombie_can_still_hold = shard(sessions, shard_id)
    assert claim(sessions, shard_id, attempts=2) is None
    assert zombie_can_still_hold.status is ShardStatus.RUNNING
    ended = job(sessions)
    assert (ended.status, ended.error_code) == (JobStatus.FAILED, "worker_lost")
    assert ended.error_message == "shard 0: broke off 2 times without getting on: its worker died"
    assert statuses(sessions) == [ShardStatus.FAILED]


def test_two_that_finish_last_at_once_finalize_the_job_once(sessions: Sessions) -> None:
    for round_ in range(10):
        ids = add_job(sessions, f"j{round_}", num_shards=8)
        taken = [take(sessions, shard_id) for shard_id in ids]
        ended = together(8, lambda n, taken=taken: finish(sessions, taken[n], failed=1))  # type: ignore[misc]
        assert sorted(end.last for end in ended) == [False] * 7 + [True]
        made = job(sessions, f"j{round_}")
        assert (made.status, made.shards_done) == (JobStatus.FINALIZING, 8)
        assert (made.rows_succeeded, made.rows_failed, made.prompt_tokens) == (72, 8, 800)


def test_cancel_against_claim_and_finish_leaves_no_running_shard_behind_a_cancelled_job(sessions: Sessions) -> None:
    for round_ in range(10):
        job_id = f"j{round_}"
        ids = add_job(sessions, job_id, num_shards=4)
        held = take(sessions, ids[0])

        def act(number: int, job_id: str = job_id, ids: list[int] = ids, held: Claim = held) -> object:
            if number == 0:
                with sessions.begin() as session:
                    return control.cancel(session, job_id, "default").status
            return finish(sessions, held) if number == 1 else claim(sessions, ids[number - 1])

        together(5, act)
        status, shard_statuses = job(sessions, job_id).status, statuses(sessions, job_id)
        assert ShardStatus.PENDING not in shard_statuses
        assert status is JobStatus.CANCELLING
        assert shard_statuses[0] is ShardStatus.DONE


def test_finish_must_account_for_every_row(sessions: Sessions) -> None:
    (shard_id,) = add_job(sessions)
    taken = take(sessions, shard_id)
    with sessions.begin() as session, pytest.raises(AssertionError, match="9 of 10 rows are done"):
        shards.finish(session, taken, progress=Progress(9), part=PartFile("p", 1, ""))


def test_the_database_itself_refuses_more_rows_than_there_are(sessions: Sessions) -> None:
    (shard_id,) = add_job(sessions)
    taken = take(sessions, shard_id)
    with pytest.raises(IntegrityError, match="shard_rows_add_up"), sessions.begin() as session:
        shards.beat(session, taken, lease_seconds=60, progress=Progress(8, 3))


def test_a_shard_that_does_not_exist(sessions: Sessions) -> None:
    assert claim(sessions, 4711) is None


def test_an_attempt_that_waits_for_the_engine_is_not_counted_until_it_gets_on(sessions: Sessions) -> None:
    (shard_id,) = add_job(sessions)
    take(sessions, shard_id)
    expire(sessions, shard_id)
    taken = take(sessions, shard_id)
    assert (taken.attempts, taken.counted) == (2, True)
    for _ in range(2):  # once, however often it waits
        with sessions.begin() as session:
            waits = shards.count(session, taken, counted=False)
        assert waits is not None
        assert (waits.attempts, waits.counted) == (1, False)
        taken = waits
    with sessions.begin() as session:
        assert shards.release(session, taken)
    again = take(sessions, shard_id)
    assert again.attempts == 2
    with sessions.begin() as session:
        assert shards.count(session, waits, counted=True) is None  # another's by now
        waits = shards.count(session, again, counted=False)
        assert waits is not None
        back = shards.count(session, waits, counted=True)
        assert back == again
        on = shards.got_on(session, again, marks=1)
    assert on is not None
    assert (on.attempts, on.counted) == (1, True)


def test_a_last_attempt_that_breaks_after_a_cancel_fails_nothing(sessions: Sessions) -> None:
    """The holder has not heard of it yet. What is finished is still to be written, with attempts of its own."""
    ids = add_job(sessions, num_shards=2)
    finish(sessions, take(sessions, ids[1]))
    for attempt in range(1, 4):
        taken = take(sessions, ids[0])
        assert taken.attempts == attempt
        with sessions.begin() as session:
            if attempt == 3:
                control.cancel(session, "j", "default")
            assert shards.retry(session, taken, code="io_error", message="x", max_attempts=3)
    assert job(sessions).status is JobStatus.CANCELLING
    assert (shard(sessions, ids[0]).status, shard(sessions, ids[0]).attempts) == (ShardStatus.PENDING, 0)
    closing = take(sessions, ids[0])
    assert (closing.attempts, closing.stopping) == (1, JobStatus.CANCELLING)


def test_what_a_holder_knows_of_its_attempts_is_not_written_over_a_cancel(sessions: Sessions) -> None:
    (shard_id,) = add_job(sessions)
    for _ in range(2):
        taken = take(sessions, shard_id)
        with sessions.begin() as session:
            shards.retry(session, taken, code="io_error", message="x", max_attempts=5)
    taken = take(sessions, shard_id)
    with sessions.begin() as session:
        waiting = shards.count(session, taken, counted=False)
    assert waiting is not None
    assert (waiting.attempts, shard(sessions, shard_id).attempts) == (2, 2)
    with sessions.begin() as session:
        control.cancel(session, "j", "default")
    with sessions.begin() as session:
        again = shards.count(session, waiting, counted=True)
    assert again is not None
    assert (again.attempts, shard(sessions, shard_id).attempts) == (3, 1)
    with sessions.begin() as session:
        assert shards.got_on(session, again, again.marks) is not None
    assert shard(sessions, shard_id).attempts == 1
    with sessions.begin() as session:
        assert shards.release(session, again)
    assert shard(sessions, shard_id).attempts == 0
