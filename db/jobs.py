"""The life of a job as functions. The caller owns the transaction; every time is the database's.

    validating -> running -> finalizing -> completed | completed_with_errors | failed
         |           `----> cancelling -> cancelled
         `-> cancelled                                    and failed from every open state

A transition locks the job's row first and then touches its shards, as db.shards does too: totals are exact at every
moment, and no two transitions can wait for each other. Nothing is sent from here: after the commit a caller that made
work due asks db.dispatch what to send.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import Any

from sqlalchemy import exists, insert, select, tuple_, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from db.errors import IdempotencyConflict, InvalidDataset, InvalidJob, JobNotCancellable, JobNotFound
from db.models import TERMINAL, Job, JobStatus, Shard, ShardStatus
from db.plans import ShardPlan
from db.progress import Progress
from db.session import db_now
from db.specs import JobSpec

INSERT_SIZE = 1000  # shards per INSERT
SPLIT_LEASE_SECONDS = 60.0
# A shard that nobody holds and that is not done has delivered nothing.
UNLEASED: dict[str, Any] = {"owner": None, "lease_until": None, **Progress().as_columns()}


def create(
    session: Session, spec: JobSpec, *, job_id: str, output_uri: str, num_rows: int, idempotency_key: str | None
) -> tuple[Job, bool]:
    """Insert a job: (job, True). A key used before gives (that job, False) when its specification was the same.

    Any number of callers may use one key at once: one of them creates. Raises IdempotencyConflict, and InvalidJob when
    another open job writes to the same output.
    """
    if idempotency_key is not None and not (0 < len(idempotency_key) <= 255 and idempotency_key.isprintable()):
        raise InvalidJob("idempotency_key", "must have 1 to 255 printable characters")
    earlier = _by_key(session, idempotency_key)
    if earlier is not None:
        return _same(earlier, spec), False
    job = Job(id=job_id, spec=spec.model_dump(mode="json"), idempotency_key=idempotency_key)
    job.output_uri, job.num_rows, job.created_at = output_uri, num_rows, db_now()
    try:
        with session.begin_nested():
            session.add(job)
    except IntegrityError:
        earlier = _by_key(session, idempotency_key)
        if earlier is not None:
            return _same(earlier, spec), False
        other = session.scalar(select(Job.id).where(Job.output_uri == output_uri, Job.status.not_in(TERMINAL)))
        if other is not None:
            raise InvalidJob("output", f"{output_uri!r} is being written by job {other!r}") from None
        raise
    return _fresh(session, job), True


def _by_key(session: Session, key: str | None) -> Job | None:
    return None if key is None else session.scalar(select(Job).where(Job.idempotency_key == key))


def _same(job: Job, spec: JobSpec) -> Job:
    if JobSpec.model_validate(job.spec) != spec:
        raise IdempotencyConflict(str(job.idempotency_key))
    return job


def _fresh(session: Session, job: Job) -> Job:
    """The job with every value that the database computed, readable after the commit too."""
    session.flush()
    session.refresh(job)
    return job


def get(session: Session, job_id: str) -> Job:
    """The job as it is now. Raises JobNotFound."""
    job = session.get(Job, job_id, populate_existing=True)
    if job is None:
        raise JobNotFound(job_id)
    return job


def listing(session: Session, *, limit: int, after: str | None = None, status: JobStatus | None = None) -> list[Job]:
    """At most `limit` jobs, newest first, older than the job `after`. Raises JobNotFound for an unknown `after`."""
    query = select(Job).order_by(Job.created_at.desc(), Job.id.desc()).limit(limit)
    if after is not None:
        query = query.where(tuple_(Job.created_at, Job.id) < (get(session, after).created_at, after))
    if status is not None:
        query = query.where(Job.status == status)
    return list(session.scalars(query))


def lock(session: Session, job_id: str) -> Job | None:
    """The job as it is now, held against every other transition until the transaction ends."""
    query = select(Job).where(Job.id == job_id).with_for_update(key_share=True)
    return session.scalar(query, execution_options={"populate_existing": True})


def has_running(session: Session, job_id: str) -> bool:
    return bool(session.scalar(select(exists().where(Shard.job_id == job_id, Shard.status == ShardStatus.RUNNING))))


def begin_split(
    session: Session, job_id: str, max_attempts: int, *, lease_seconds: float = SPLIT_LEASE_SECONDS
) -> Job | None:
    """Take up the split of a VALIDATING job; None when there is none to take, or another worker holds it.

    The lease keeps a second message from splitting the job beside us; a split that lasts longer calls `beat_split`.
    An attempt more than `max_attempts` fails the job instead.
    """
    job = lock(session, job_id)
    now = session.scalar(select(db_now())) or 0.0
    if job is None or job.status is not JobStatus.VALIDATING or (job.lease_until or 0.0) > now:
        return None
    if job.attempts >= max_attempts:
        _close(session, job, JobStatus.FAILED, "too_many_attempts", f"its split broke off {job.attempts} times")
        return None
    job.attempts += 1
    job.lease_until = now + lease_seconds
    job.started_at = job.started_at or now
    return _fresh(session, job)


def beat_split(session: Session, job_id: str, *, lease_seconds: float = SPLIT_LEASE_SECONDS) -> bool:
    """Renew the lease of a split; False when the job is no longer VALIDATING and the split should be dropped."""
    beaten = session.execute(
        update(Job)
        .where(Job.id == job_id, Job.status == JobStatus.VALIDATING)
        .values(lease_until=db_now() + lease_seconds)
        .returning(Job.id),
        execution_options={"synchronize_session": False},
    )
    return beaten.first() is not None


def finish_split(session: Session, job_id: str, *, prepared: dict[str, Any], shards: Iterable[ShardPlan]) -> bool:
    """VALIDATING -> RUNNING with these shards; False when the job is not VALIDATING.

    Plans are taken lazily and inserted in batches. Raises InvalidDataset (`changed`) when they do not cover the rows
    that the job was accepted with.
    """
    job = lock(session, job_id)
    if job is None or job.status is not JobStatus.VALIDATING:
        return False
    num_shards = num_rows = 0
    plans = iter(shards)
    while batch := list(islice(plans, INSERT_SIZE)):
        for plan in batch:
            assert (plan.index, plan.first_row) == (num_shards, num_rows), plan
            num_shards, num_rows = num_shards + 1, num_rows + plan.num_rows
        session.execute(insert(Shard), [_columns(job_id, plan) for plan in batch])
    if num_rows != job.num_rows:
        reason = f"had {job.num_rows:,} rows at submission and has {num_rows:,} now"
        raise InvalidDataset("changed", str(job.spec["input"]), reason)
    assert num_shards > 0, "an empty input has one shard of no rows"
    job.status, job.prepared, job.num_shards, job.lease_until = JobStatus.RUNNING, prepared, num_shards, None
    session.flush()
    return True


def _columns(job_id: str, plan: ShardPlan) -> dict[str, Any]:
    rows = {"start_row": plan.start_row, "stop_row": plan.stop_row, "first_row": plan.first_row}
    return {"job_id": job_id, "index": plan.index, "file": plan.file, **rows}


def request_cancel(session: Session, job_id: str) -> Job:
    """Stop a job: pending shards at once, running ones at their next beat; what is done is kept.

    CANCELLED directly when nothing runs and no part was written, else CANCELLING until the manifest tells what there
    is. Asking again is fine. Raises JobNotFound, and JobNotCancellable for a job that is finalizing or has ended.
    """
    job = lock(session, job_id)
    if job is None:
        raise JobNotFound(job_id)
    if job.status in (JobStatus.CANCELLING, JobStatus.CANCELLED):
        return job
    if job.status not in (JobStatus.VALIDATING, JobStatus.RUNNING):
        raise JobNotCancellable(job_id, job.status)
    cancel_shards(session, job_id, ShardStatus.PENDING)
    if job.shards_done == 0 and not has_running(session, job_id):
        _close(session, job, JobStatus.CANCELLED)
    else:
        job.status, job.dispatched_at = JobStatus.CANCELLING, 0.0
    return _fresh(session, job)


def cancel_shards(session: Session, job_id: str, *statuses: ShardStatus) -> None:
    """Take shards away from whoever holds them. The caller holds the job; the new fence refuses every later write."""
    session.execute(
        update(Shard)
        .where(Shard.job_id == job_id, Shard.status.in_(statuses))
        .values(status=ShardStatus.CANCELLED, fence=Shard.fence + 1, **UNLEASED),
        execution_options={"synchronize_session": False},
    )


def complete(session: Session, job_id: str) -> JobStatus | None:
    """End a job whose manifest is published, and say how; None when it is not FINALIZING, nor CANCELLING and still."""
    job = lock(session, job_id)
    if job is None or job.status not in (JobStatus.FINALIZING, JobStatus.CANCELLING):
        return None
    if job.status is JobStatus.CANCELLING:
        if has_running(session, job_id):
            return None
        _close(session, job, JobStatus.CANCELLED)
    elif job.num_rows > 0 and job.rows_succeeded == 0:
        _close(session, job, JobStatus.FAILED, "no_row_succeeded", f"all {job.num_rows:,} rows are error rows")
    else:
        _close(session, job, JobStatus.COMPLETED_WITH_ERRORS if job.rows_failed else JobStatus.COMPLETED)
    return job.status


def fail_job(session: Session, job_id: str, *, code: str, message: str) -> bool:
    """End an open job as FAILED for this reason; its open shards are cancelled. False when it had ended already."""
    job = lock(session, job_id)
    if job is None or job.status.terminal:
        return False
    _close(session, job, JobStatus.FAILED, code, message)
    return True


def _close(session: Session, job: Job, status: JobStatus, code: str | None = None, message: str | None = None) -> None:
    cancel_shards(session, job.id, ShardStatus.PENDING, ShardStatus.RUNNING)
    job.status, job.finished_at, job.lease_until = status, db_now(), None
    job.error_code, job.error_message = storable(code, 64), storable(message, 4096)
    session.flush()


def storable(text: str | None, limit: int) -> str | None:
    """Text that every database takes: cut to the column, without NUL and lone surrogates."""
    return text and text[:limit].replace("\0", "�").encode("utf-8", "replace").decode("utf-8")
