"""Jobs: creation, listing, and how a job ends."""

from __future__ import annotations

import pytest
from sqlalchemy import update

from db import control, dispatch, jobs, phases, shards
from db.dispatch import Wakeup
from db.errors import IdempotencyConflict, InvalidJob, JobNotFound
from db.models import Job, JobStatus, ShardStatus
from db.progress import Progress, progress
from db.session import db_now
from db.shards import Beat, Finish
from tests.db.ledger import SPEC, Sessions, add_job, finish, job, shard, statuses, take, together


def create(sessions: Sessions, job_id: str, key: str | None = None, output: str | None = None) -> tuple[str, bool]:
    with sessions.begin() as session:
        made, created = jobs.create(
            session,
            SPEC,
            tenant="default",
            job_id=job_id,
            output_uri=output or f"/out/{job_id}",
            num_rows=3,
            idempotency_key=key,
        )
        return made.id, created


# -- creation and reading ---------------------------------------------------------------------------------------------


def test_a_new_job_waits_for_its_split(sessions: Sessions) -> None:
    assert create(sessions, "a") == ("a", True)
    made = job(sessions, "a")
    assert (made.status, made.num_rows, made.num_shards, made.prepared) == (JobStatus.VALIDATING, 3, None, None)
    assert made.spec == SPEC.model_dump(mode="json")
    with sessions.begin() as session:
        assert progress(session, ["a", "none"]) == {"a": Progress()}


def test_an_idempotency_key_gives_the_same_job_and_refuses_another_specification(sessions: Sessions) -> None:
    assert create(sessions, "a", "key") == ("a", True)
    assert create(sessions, "b", "key") == ("a", False)
    other = SPEC.model_copy(update={"model": "another"})
    with sessions.begin() as session, pytest.raises(IdempotencyConflict, match="'key'"):
        jobs.create(
            session, other, tenant="default", job_id="c", output_uri="/out/c", num_rows=3, idempotency_key="key"
        )


def test_16_threads_with_one_idempotency_key_make_one_job(sessions: Sessions) -> None:
    made = together(16, lambda number: create(sessions, f"j{number}", "key"))
    assert sorted(created for _, created in made) == [False] * 15 + [True]
    assert len({job_id for job_id, _ in made}) == 1


@pytest.mark.parametrize("key", ["", "x" * 256, "a\0b", "a\nb"])
def test_an_unusable_idempotency_key_is_refused(sessions: Sessions, key: str) -> None:
    with pytest.raises(InvalidJob, match="idempotency_key"):
        create(sessions, "a", key)


def test_two_open_jobs_never_share_an_output(sessions: Sessions) -> None:
    def attempt(number: int) -> str:
        try:
            return create(sessions, f"j{number}", output="/out/same")[0]
        except InvalidJob as error:
            return f"refused: {error.field}"

    made = together(8, attempt)
    assert made.count("refused: output") == 7
    (first,) = set(made) - {"refused: output"}
    with sessions.begin() as session:
        control.cancel(session, first, "default")
    assert create(sessions, "later", output="/out/same") == ("later", True)


def test_listing_is_newest_first_in_pages_by_status(sessions: Sessions) -> None:
    for number in range(5):
        create(sessions, f"j{number}")
    with sessions.begin() as session:
        # Equal times are told apart by the id.
        session.execute(update(Job).where(Job.id.in_(["j1", "j2"])).values(created_at=1000.0))
        control.cancel(session, "j3", "default")
        assert [j.id for j in jobs.listing(session, "default", limit=10)] == ["j4", "j3", "j0", "j2", "j1"]
        assert [j.id for j in jobs.listing(session, "default", limit=2, after="j3")] == ["j0", "j2"]
        assert [j.id for j in jobs.listing(session, "default", limit=2, after="j2")] == ["j1"]
        assert [j.id for j in jobs.listing(session, "default", limit=9, status=JobStatus.CANCELLED)] == ["j3"]
        with pytest.raises(JobNotFound, match="'nope'"):
            jobs.listing(session, "default", limit=2, after="nope")


def test_unknown_jobs(sessions: Sessions) -> None:
    with sessions.begin() as session:
        for call in (jobs.get, control.cancel):
            with pytest.raises(JobNotFound, match="'nope'"):
                call(session, "nope", "default")
        assert phases.begin_split(session, "nope", 3) is None
        assert phases.begin_merge(session, "nope", 3) is None
        assert jobs.complete(session, "nope") is None
        assert not jobs.fail_job(session, "nope", code="c", message="m")


# -- the end ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("failed", "status", "code"),
    [
        ((0, 0), JobStatus.COMPLETED, None),
        ((0, 10), JobStatus.COMPLETED_WITH_ERRORS, None),
        ((1, 0), JobStatus.COMPLETED_WITH_ERRORS, None),
        ((10, 10), JobStatus.FAILED, "no_row_succeeded"),
    ],
)
def test_a_job_ends_by_its_counts(
    sessions: Sessions, failed: tuple[int, int], status: JobStatus, code: str | None
) -> None:
    ids = add_job(sessions, num_shards=2)
    with sessions.begin() as session:
        assert jobs.complete(session, "j") is None
    ended = [finish(sessions, take(sessions, shard_id), failed=n) for shard_id, n in zip(ids, failed, strict=True)]
    assert ended == [Finish(accepted=True, last=False), Finish(accepted=True, last=True)]
    assert job(sessions).status is JobStatus.FINALIZING
    with sessions.begin() as session:
        assert dispatch.due(session, window=9, redispatch_seconds=60) == [Wakeup("merge", "j")]
        assert jobs.complete(session, "j") is status
        assert jobs.complete(session, "j") is None
        assert not jobs.fail_job(session, "j", code="late", message="")
    made = job(sessions)
    assert (made.rows_succeeded, made.rows_failed) == (20 - sum(failed), sum(failed))
    assert (made.status, made.error_code, made.shards_done) == (status, code, 2)
    assert (made.prompt_tokens, made.cached_tokens, made.output_tokens) == (200, 80, 40)


def test_a_job_without_rows_completes(sessions: Sessions) -> None:
    (shard_id,) = add_job(sessions, shard_rows=0)
    assert finish(sessions, take(sessions, shard_id)).last
    with sessions.begin() as session:
        assert jobs.complete(session, "j") is JobStatus.COMPLETED


def test_a_failing_job_takes_its_shards_along(sessions: Sessions) -> None:
    ids = add_job(sessions, num_shards=3)
    finish(sessions, take(sessions, ids[0]))
    running = take(sessions, ids[1])
    with sessions.begin() as session:
        assert shards.beat(session, running, lease_seconds=60, progress=Progress(5)) is Beat.OK
        assert jobs.fail_job(session, "j", code="model_missing", message="a\0b\ud800" + "x" * 5000)
        assert shards.beat(session, running, lease_seconds=60, progress=Progress(6)) is Beat.LOST
        assert progress(session, ["j"]) == {"j": Progress(10, 0, 100, 40, 20)}
        assert dispatch.due(session, window=9, redispatch_seconds=60) == []
    assert statuses(sessions) == [ShardStatus.DONE, ShardStatus.CANCELLED, ShardStatus.CANCELLED]
    assert shard(sessions, ids[1]).rows_succeeded == 0
    made = job(sessions)
    assert (made.status, made.error_code) == (JobStatus.FAILED, "model_missing")
    assert made.error_message == "a�b?" + "x" * 4092


def test_progress_adds_running_shards_to_done_ones(sessions: Sessions) -> None:
    ids = add_job(sessions, num_shards=3)
    finish(sessions, take(sessions, ids[0]), failed=2)
    taken = take(sessions, ids[1])
    with sessions.begin() as session:
        shards.beat(session, taken, lease_seconds=60, progress=Progress(3, 1, 30, 12, 6))
        assert progress(session, ["j"]) == {"j": Progress(11, 3, 130, 52, 26)}
        shards.release(session, taken)
        assert progress(session, ["j"]) == {"j": Progress(8, 2, 100, 40, 20)}


def test_the_clock_of_created_at_is_the_databases(sessions: Sessions) -> None:
    create(sessions, "a")
    with sessions.begin() as session:
        now = session.scalar(db_now().select())
    assert now is not None
    assert 0 <= now - job(sessions, "a").created_at < 10
