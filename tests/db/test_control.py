"""Pause, resume and deadlines; priorities and fair shares."""

from __future__ import annotations

import pytest
from sqlalchemy import update

from db import control, dispatch, jobs, shards, turns
from db.dispatch import Wakeup
from db.errors import JobNotFound, WrongState
from db.models import Job, JobStatus, ShardStatus
from db.progress import Progress
from db.session import db_now
from db.shards import Beat, Finish, PartFile
from tests.db.ledger import SPEC, Sessions, add_job, expire, finish, job, statuses, take

PART = PartFile("part-00000.parquet", 1, "0" * 64)


def send(sessions: Sessions) -> list[Wakeup]:
    with sessions.begin() as session:
        return dispatch.due(session, window=4, redispatch_seconds=60)


def choose(sessions: Sessions) -> int | None:
    with sessions.begin() as session:
        return turns.choose(session)


def pass_deadline(sessions: Sessions, job_id: str = "j") -> None:
    with sessions.begin() as session:
        session.execute(update(Job).where(Job.id == job_id).values(expires_at=db_now() - 1))


def test_pause_and_resume(sessions: Sessions) -> None:
    ids = add_job(sessions, num_shards=2)
    taken = take(sessions, ids[0])
    with sessions.begin() as session:
        assert control.pause(session, "j", "default").status is JobStatus.PAUSED
        assert control.pause(session, "j", "default").status is JobStatus.PAUSED
        assert shards.beat(session, taken, lease_seconds=60, progress=Progress(3)) is Beat.PAUSE
        assert shards.release(session, taken)
    assert send(sessions) == []
    with sessions.begin() as session:
        assert shards.claim(session, ids[1], owner="w", lease_seconds=60, max_attempts=3) is None
        assert control.resume(session, "j", "default").status is JobStatus.RUNNING
        assert control.resume(session, "j", "default").status is JobStatus.RUNNING
    assert send(sessions) == [Wakeup("run", shard_id) for shard_id in ids]
    assert take(sessions, ids[0]).attempts == 1


def test_shards_whose_message_came_during_a_pause_are_sent_again_by_resume(sessions: Sessions) -> None:
    ids = add_job(sessions, num_shards=2)
    assert send(sessions) == [Wakeup("run", shard_id) for shard_id in ids]
    with sessions.begin() as session:
        control.pause(session, "j", "default")
    assert choose(sessions) is None  # a worker was woken, and found nothing to do
    with sessions.begin() as session:
        control.resume(session, "j", "default")
    assert send(sessions) == [Wakeup("run", shard_id) for shard_id in ids]


def test_the_last_shard_may_finish_while_its_job_is_paused(sessions: Sessions) -> None:
    (shard_id,) = add_job(sessions)
    taken = take(sessions, shard_id)
    with sessions.begin() as session:
        control.pause(session, "j", "default")
    assert finish(sessions, taken) == Finish(accepted=True, last=True)
    with sessions.begin() as session:
        with pytest.raises(WrongState, match="job 'j' is finalizing: it cannot be paused"):
            control.pause(session, "j", "default")
        jobs.complete(session, "j")
        with pytest.raises(WrongState, match="job 'j' is completed: it cannot be resumed"):
            control.resume(session, "j", "default")
        for call in (control.pause, control.resume):
            with pytest.raises(JobNotFound):
                call(session, "nope", "default")


def test_a_job_that_waits_for_its_split_can_be_paused(sessions: Sessions) -> None:
    with sessions.begin() as session:
        jobs.create(session, SPEC, tenant="default", job_id="a", output_uri="/out/a", num_rows=3, idempotency_key=None)
        control.pause(session, "a", "default")
    assert send(sessions) == []
    with sessions.begin() as session:
        assert control.resume(session, "a", "default").status is JobStatus.VALIDATING
    assert send(sessions) == [Wakeup("split", "a")]


def test_a_paused_job_can_be_cancelled(sessions: Sessions) -> None:
    add_job(sessions, num_shards=2)
    with sessions.begin() as session:
        control.pause(session, "j", "default")
        assert control.cancel(session, "j", "default").status is JobStatus.CANCELLED
    assert statuses(sessions) == [ShardStatus.CANCELLED] * 2


def test_a_deadline_stops_the_job_and_every_shard_is_written(sessions: Sessions) -> None:
    ids = add_job(sessions, num_shards=3)
    finish(sessions, take(sessions, ids[0]))
    running = take(sessions, ids[1])
    pass_deadline(sessions)
    assert send(sessions) == [Wakeup("run", ids[2])]
    assert job(sessions).status is JobStatus.EXPIRING
    with sessions.begin() as session:
        assert shards.beat(session, running, lease_seconds=60, progress=Progress(4)) is Beat.EXPIRE
        assert shards.finish(session, running, progress=Progress(4, 1), part=PART).accepted
    closing = take(sessions, ids[2])
    assert closing.stopping is JobStatus.EXPIRING
    with sessions.begin() as session:
        assert shards.finish(session, closing, progress=Progress(), part=PART) == Finish(accepted=True, last=True)
        assert dispatch.due(session, window=4, redispatch_seconds=60) == [Wakeup("merge", "j")]
        assert jobs.complete(session, "j") is JobStatus.EXPIRED
    ended = job(sessions)
    assert (ended.rows_succeeded, ended.rows_failed, ended.shards_done) == (14, 1, 3)
    assert ended.finished_at is not None


def test_a_deadline_before_the_split_ends_the_job(sessions: Sessions) -> None:
    spec = SPEC.model_copy(update={"deadline_seconds": 3600.0, "priority": 7})
    with sessions.begin() as session:
        made, _ = jobs.create(
            session, spec, tenant="default", job_id="a", output_uri="/out/a", num_rows=3, idempotency_key=None
        )
    assert (made.priority, round((made.expires_at or 0) - made.created_at)) == (7, 3600)
    pass_deadline(sessions, "a")
    assert send(sessions) == []
    assert job(sessions, "a").status is JobStatus.EXPIRED


def test_a_job_that_is_finalizing_does_not_expire(sessions: Sessions) -> None:
    (shard_id,) = add_job(sessions)
    finish(sessions, take(sessions, shard_id))
    pass_deadline(sessions)
    send(sessions)
    assert job(sessions).status is JobStatus.FINALIZING


def test_the_higher_priority_first_then_the_job_with_less_at_work(sessions: Sessions) -> None:
    big, small = add_job(sessions, "big", num_shards=4), add_job(sessions, "small", num_shards=2)
    assert choose(sessions) is None  # nothing was sent
    send(sessions)
    order = []
    for _ in range(4):
        shard_id = choose(sessions)
        assert shard_id is not None
        take(sessions, shard_id)
        order.append(shard_id)
    assert order == [big[0], small[0], big[1], small[1]]
    urgent = add_job(sessions, "urgent")
    with sessions.begin() as session:
        session.execute(update(Job).where(Job.id == "urgent").values(priority=1))
    assert send(sessions) == [Wakeup("run", urgent[0])]
    assert choose(sessions) == urgent[0]
    take(sessions, urgent[0])
    assert choose(sessions) == big[2]
    expire(sessions, small[0])
    assert choose(sessions) == small[0]  # its lease is dead: nobody is at work on it


def test_a_broken_shard_pauses_before_it_is_sent_again(sessions: Sessions) -> None:
    ids = add_job(sessions, num_shards=2)
    taken = take(sessions, ids[0])
    with sessions.begin() as session:
        assert shards.retry(session, taken, code="engine_failed", message="m", max_attempts=3, pause=60)
    assert send(sessions) == [Wakeup("run", ids[1])]
    with sessions.begin() as session:
        assert shards.claim(session, ids[0], owner="w", lease_seconds=60, max_attempts=3) is None


def test_attempts_count_from_one_again_after_one_that_got_on(sessions: Sessions) -> None:
    (shard_id,) = add_job(sessions)
    for _ in range(5):  # more than there are attempts
        taken = take(sessions, shard_id)
        with sessions.begin() as session:
            moved = shards.got_on(session, taken, taken.marks + 3)
        assert moved is not None
        assert (moved.attempts, moved.marks) == (1, taken.marks + 3)
        expire(sessions, shard_id)
    with sessions.begin() as session:
        assert shards.got_on(session, taken, 100) is not None  # a dead lease that nobody took is still its own
    second = take(sessions, shard_id)
    with sessions.begin() as session:
        assert shards.got_on(session, taken, 200) is None
        same = shards.got_on(session, second, second.marks)
    assert same is not None
    assert same.attempts == second.attempts == 2
