"""Split and merge: one worker at a time, fenced, tried again a bounded number of times, and honest about the reason."""

from __future__ import annotations

import pytest
from sqlalchemy import update

from db import control, dispatch, jobs, phases
from db.dispatch import Wakeup
from db.errors import InvalidDataset
from db.models import Job, JobStatus
from db.plans import ShardPlan
from db.session import db_now
from tests.db.ledger import SPEC, Sessions, add_job, finish, job, statuses, take, together

PLAN = [ShardPlan(0, "/f", 0, 3, 0)]


def create(sessions: Sessions, job_id: str = "a") -> None:
    with sessions.begin() as session:
        jobs.create(
            session,
            SPEC,
            tenant="default",
            job_id=job_id,
            output_uri=f"/out/{job_id}",
            num_rows=3,
            idempotency_key=None,
        )


def split(sessions: Sessions, *, lease: float = 60, attempts: int = 3) -> Job:
    with sessions.begin() as session:
        begun = phases.begin_split(session, "a", attempts, lease_seconds=lease)
    assert begun is not None
    return begun


def end_pause(sessions: Sessions, job_id: str = "a") -> None:
    with sessions.begin() as session:
        session.execute(update(Job).where(Job.id == job_id).values(lease_until=db_now() - 1))


def test_a_split_is_held_by_one_worker_until_its_lease_ends(sessions: Sessions) -> None:
    create(sessions)

    def begin(number: int) -> int | None:
        with sessions.begin() as session:
            begun = phases.begin_split(session, "a", 3, lease_seconds=60)
            return begun and begun.attempts

    assert sorted(together(8, begin), key=str) == [1] + [None] * 7
    end_pause(sessions)
    assert begin(0) == 2


def test_a_zombies_split_changes_nothing(sessions: Sessions) -> None:
    create(sessions)
    zombie = split(sessions, lease=-1)
    holder = split(sessions)
    with sessions.begin() as session:
        assert not phases.beat(session, zombie)
        assert not phases.give_back(session, zombie)
        assert not phases.fail(session, zombie, code="model_missing", message="of the zombie's machine")
        assert not phases.retry(session, zombie, code="c", message="m", max_attempts=1, pause=0)
        assert not phases.finish_split(session, zombie, prepared={}, shards=PLAN)
        assert phases.beat(session, holder)
        assert phases.finish_split(session, holder, prepared={}, shards=PLAN)
        assert not phases.fail(session, holder, code="late", message="the split is over")
    assert job(sessions, "a").status is JobStatus.RUNNING


def test_a_split_whose_workers_die_fails_the_job(sessions: Sessions) -> None:
    create(sessions)
    for _ in range(2):
        split(sessions, lease=-1, attempts=2)
    with sessions.begin() as session:
        assert phases.begin_split(session, "a", 2) is None
    ended = job(sessions, "a")
    assert (ended.status, ended.error_code) == (JobStatus.FAILED, "worker_lost")
    assert ended.error_message == "the split broke off 2 times: its worker ended"


def test_a_split_that_breaks_is_tried_again_after_a_pause_and_then_fails_with_the_reason(sessions: Sessions) -> None:
    create(sessions)
    with sessions.begin() as session:
        assert dispatch.due(session, window=4, redispatch_seconds=60) == [Wakeup("split", "a")]
    begun = split(sessions)
    with sessions.begin() as session:
        assert phases.retry(session, begun, code="io_error", message="/data is gone", max_attempts=2, pause=60)
        assert dispatch.due(session, window=4, redispatch_seconds=60) == []
        assert phases.begin_split(session, "a", 2) is None
    end_pause(sessions)
    with sessions.begin() as session:
        assert dispatch.due(session, window=4, redispatch_seconds=60) == [Wakeup("split", "a")]
    begun = split(sessions, attempts=2)
    with sessions.begin() as session:
        assert phases.retry(session, begun, code="io_error", message="/data is gone", max_attempts=2, pause=60)
    ended = job(sessions, "a")
    assert (ended.status, ended.error_code, ended.error_message) == (JobStatus.FAILED, "io_error", "/data is gone")


def test_a_split_that_is_given_back_costs_no_attempt(sessions: Sessions) -> None:
    create(sessions)
    begun = split(sessions)
    with sessions.begin() as session:
        assert phases.give_back(session, begun)
        assert not phases.give_back(session, begun)
        assert dispatch.due(session, window=4, redispatch_seconds=60) == [Wakeup("split", "a")]
    assert split(sessions).attempts == 1


def test_only_the_first_split_counts(sessions: Sessions) -> None:
    add_job(sessions, num_shards=2)
    with sessions.begin() as session:
        assert not phases.finish_split(session, jobs.get(session, "j", "default"), prepared={"prior": [0.9]}, shards=[])
        assert phases.begin_split(session, "j", 3) is None
    made = job(sessions)
    assert (made.status, made.num_shards, made.prepared) == (JobStatus.RUNNING, 2, {"prior": [0.5]})


def test_a_split_must_cover_the_rows_of_the_submission(sessions: Sessions) -> None:
    create(sessions)
    begun = split(sessions)
    with pytest.raises(InvalidDataset, match="had 3 rows at submission and has 2 now") as caught, sessions.begin() as s:
        phases.finish_split(s, begun, prepared={}, shards=[ShardPlan(0, "/f", 0, 2, 0)])
    assert caught.value.code == "changed"
    assert job(sessions, "a").status is JobStatus.VALIDATING
    assert statuses(sessions, "a") == []


def test_a_merge_is_held_by_one_worker_and_capped(sessions: Sessions) -> None:
    """Attempts of the split do not count against it."""
    (shard_id,) = add_job(sessions)
    finish(sessions, take(sessions, shard_id))
    for attempt in (1, 2):
        with sessions.begin() as session:
            begun = phases.begin_merge(session, "j", 2)
            assert begun is not None
            assert begun.attempts == attempt
            assert phases.begin_merge(session, "j", 2) is None
            assert phases.retry(session, begun, code="no_space", message="disk full", max_attempts=2, pause=60)
        end_pause(sessions, "j")
    ended = job(sessions)
    assert (ended.status, ended.error_code, ended.error_message) == (JobStatus.FAILED, "no_space", "disk full")
    assert (ended.rows_succeeded, ended.shards_done) == (10, 1)


def test_a_paused_jobs_split_goes_to_its_end_and_the_job_stays_paused(sessions: Sessions) -> None:
    create(sessions)
    begun = split(sessions)
    with sessions.begin() as session:
        assert control.pause(session, "a", "default").status is JobStatus.PAUSED
        assert phases.beat(session, begun)
        assert phases.finish_split(session, begun, prepared={}, shards=PLAN)
        assert dispatch.due(session, window=4, redispatch_seconds=60) == []
        assert control.resume(session, "a", "default").status is JobStatus.RUNNING
        assert [wakeup.task for wakeup in dispatch.due(session, window=4, redispatch_seconds=60)] == ["run"]
