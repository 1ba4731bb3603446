"""Cancelling a job in every state, and what happens to its shards."""

from __future__ import annotations

import pytest

from db import control, dispatch, jobs, phases, shards
from db.dispatch import Wakeup
from db.errors import JobNotCancellable
from db.models import JobStatus, ShardStatus
from db.plans import ShardPlan
from db.progress import Progress, progress
from db.shards import Beat, Finish, PartFile
from tests.db.ledger import SPEC, Sessions, add_job, claim, expire, finish, job, statuses, take


def test_cancel_while_nothing_runs_and_nothing_is_written_ends_the_job(sessions: Sessions) -> None:
    ids = add_job(sessions, num_shards=3)
    with sessions.begin() as session:
        assert control.cancel(session, "j", "default").status is JobStatus.CANCELLED
    assert statuses(sessions) == [ShardStatus.CANCELLED] * 3
    assert claim(sessions, ids[0]) is None
    assert job(sessions).finished_at is not None


def test_cancel_while_shards_run_stops_them_and_keeps_what_is_done(sessions: Sessions) -> None:
    ids = add_job(sessions, num_shards=4)
    finish(sessions, take(sessions, ids[0]))
    stopped, finished = take(sessions, ids[1]), take(sessions, ids[2])
    done, running, gone = ShardStatus.DONE, ShardStatus.RUNNING, ShardStatus.CANCELLED
    with sessions.begin() as session:
        assert control.cancel(session, "j", "default").status is JobStatus.CANCELLING
    assert statuses(sessions) == [done, running, running, gone]
    with sessions.begin() as session:
        assert control.cancel(session, "j", "default").status is JobStatus.CANCELLING
        assert jobs.complete(session, "j") is None
        assert dispatch.due(session, window=9, redispatch_seconds=60) == []
        assert shards.beat(session, stopped, lease_seconds=60, progress=Progress(4)) is Beat.CANCEL
    assert finish(sessions, finished, failed=1) == Finish(accepted=True, last=False)
    with sessions.begin() as session:
        assert shards.cancelled(session, stopped)
        assert not shards.cancelled(session, stopped)
        assert dispatch.due(session, window=9, redispatch_seconds=60) == [Wakeup("merge", "j")]
        assert jobs.complete(session, "j") is JobStatus.CANCELLED
        assert control.cancel(session, "j", "default").status is JobStatus.CANCELLED
        assert progress(session, ["j"]) == {"j": Progress(19, 1, 200, 80, 40)}
    assert statuses(sessions) == [done, gone, done, gone]


def test_the_last_running_shard_of_a_cancelling_job_may_finish(sessions: Sessions) -> None:
    ids = add_job(sessions, num_shards=2)
    taken = take(sessions, ids[0])
    with sessions.begin() as session:
        control.cancel(session, "j", "default")
    assert finish(sessions, taken) == Finish(accepted=True, last=True)
    with sessions.begin() as session:
        assert jobs.complete(session, "j") is JobStatus.CANCELLED


def test_cancel_after_parts_were_written_goes_through_the_manifest(sessions: Sessions) -> None:
    ids = add_job(sessions, num_shards=2)
    finish(sessions, take(sessions, ids[0]))
    with sessions.begin() as session:
        assert control.cancel(session, "j", "default").status is JobStatus.CANCELLING
    with sessions.begin() as session:
        assert dispatch.due(session, window=9, redispatch_seconds=60) == [Wakeup("merge", "j")]
        assert jobs.complete(session, "j") is JobStatus.CANCELLED


def test_a_cancelled_shard_whose_worker_died_is_taken_up_to_be_closed(sessions: Sessions) -> None:
    (shard_id,) = add_job(sessions)
    taken = take(sessions, shard_id)
    with sessions.begin() as session:
        control.cancel(session, "j", "default")
    expire(sessions, shard_id)
    with sessions.begin() as session:
        assert dispatch.due(session, window=9, redispatch_seconds=60) == [Wakeup("run", shard_id)]
    closing = take(sessions, shard_id)
    assert (closing.stopping, closing.attempts) == (JobStatus.CANCELLING, 1)
    assert finish(sessions, taken) == Finish(accepted=False, last=False)
    part = PartFile("part-00000.parquet", 1, "0" * 64)
    with sessions.begin() as session:
        # Six of ten rows were in the checkpoints.
        assert shards.finish(session, closing, progress=Progress(5, 1), part=part) == Finish(accepted=True, last=True)
        assert jobs.complete(session, "j") is JobStatus.CANCELLED
        assert progress(session, ["j"]) == {"j": Progress(5, 1)}


def test_a_shard_that_was_given_back_before_the_cancel_is_taken_up_to_be_closed(sessions: Sessions) -> None:
    ids = add_job(sessions, num_shards=2)
    taken = take(sessions, ids[0])
    with sessions.begin() as session:
        shards.retry(session, taken, code="engine_failed", message="m", max_attempts=3, pause=3600)
        assert control.cancel(session, "j", "default").status is JobStatus.CANCELLING
    assert statuses(sessions) == [ShardStatus.PENDING, ShardStatus.CANCELLED]
    closing = take(sessions, ids[0])
    with sessions.begin() as session:
        assert shards.cancelled(session, closing)
        assert jobs.complete(session, "j") is JobStatus.CANCELLED


def test_a_job_past_its_last_shard_cannot_be_cancelled(sessions: Sessions) -> None:
    (shard_id,) = add_job(sessions)
    finish(sessions, take(sessions, shard_id))
    with sessions.begin() as session:
        with pytest.raises(JobNotCancellable, match="finalizing"):
            control.cancel(session, "j", "default")
        jobs.complete(session, "j")
        with pytest.raises(JobNotCancellable, match="completed"):
            control.cancel(session, "j", "default")


def test_a_cancel_during_the_split_wins(sessions: Sessions) -> None:
    with sessions.begin() as session:
        jobs.create(session, SPEC, tenant="default", job_id="a", output_uri="/out/a", num_rows=3, idempotency_key=None)
    with sessions.begin() as session:
        begun = phases.begin_split(session, "a", 3)
        assert begun is not None
        assert control.cancel(session, "a", "default").status is JobStatus.CANCELLED
    with sessions.begin() as session:
        assert not phases.finish_split(session, begun, prepared={}, shards=[ShardPlan(0, "/f", 0, 3, 0)])
    assert statuses(sessions, "a") == []
