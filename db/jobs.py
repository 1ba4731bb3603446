"""The life of a job as functions. The caller owns the transaction; every time is the database's.

    validating -> running -> finalizing -> completed | completed_with_errors | failed
         |  `- paused -'  `-> cancelling -> cancelled
         |                `-> expiring -> expired
         `-> cancelled | expired                          and failed from every open state

Here are its beginning and its end. db.phases has split and merge, db.control what a person or a deadline does to a job,
db.shards the shards. A transition locks the job's row first and then touches its shards, as db.shards does too: totals
are exact at every moment, and no two transitions can wait for each other. Nothing is sent from here: after the commit a
caller that made work due asks db.dispatch what to send.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import exists, select, tuple_, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from db import quotas, webhooks
from db.errors import IdempotencyConflict, InvalidJob, JobNotFound
from db.models import STOPPING, TERMINAL, Job, JobStatus, Shard, ShardStatus
from db.progress import Progress
from db.session import db_now
from db.specs import JobSpec

STOPPED = {JobStatus.CANCELLING: JobStatus.CANCELLED, JobStatus.EXPIRING: JobStatus.EXPIRED}
OPEN_SHARD = (ShardStatus.PENDING, ShardStatus.RUNNING)
# A shard that nobody holds and that is not done has delivered nothing.
UNLEASED: dict[str, Any] = {"owner": None, "lease_until": None, **Progress().as_columns()}


def create(
    session: Session,
    spec: JobSpec,
    *,
    tenant: str,
    job_id: str,
    output_uri: str,
    num_rows: int,
    idempotency_key: str | None,
    num_tokens: int = 0,
    retry_of: str | None = None,
    input_version: str | None = None,
) -> tuple[Job, bool]:
    """Insert a job: (job, True). A key that the tenant used before gives (that job, False) when its specification was
    the same.

    Any number of callers may use one key at once: one of them creates. Raises IdempotencyConflict, QuotaExceeded, and
    InvalidJob when another open job writes to the same output.
    """
    if idempotency_key is not None and not (0 < len(idempotency_key) <= 255 and idempotency_key.isprintable()):
        raise InvalidJob("idempotency_key", "must have 1 to 255 printable characters")
    earlier = by_key(session, tenant, idempotency_key)
    if earlier is not None:
        return same(earlier, spec), False
    quotas.check(session, tenant, num_rows, num_tokens)
    job = Job(id=job_id, tenant=tenant, spec=spec.model_dump(mode="json"), idempotency_key=idempotency_key)
    job.output_uri, job.num_rows, job.created_at = output_uri, num_rows, db_now()
    job.num_tokens, job.input_version = num_tokens, input_version
    job.priority, job.retry_of = spec.priority, retry_of
    if spec.deadline_seconds is not None:
        job.expires_at = db_now() + spec.deadline_seconds
    try:
        with session.begin_nested():
            session.add(job)
    except IntegrityError:
        earlier = by_key(session, tenant, idempotency_key)
        if earlier is not None:
            return same(earlier, spec), False
        other = session.scalar(select(Job).where(Job.output_uri == output_uri, Job.status.not_in(TERMINAL)))
        if other is not None:
            whose = f"job {other.id!r}" if other.tenant == tenant else "another job"
            raise InvalidJob("output", f"{output_uri!r} is being written by {whose}") from None
        raise
    return fresh(session, job), True


def by_key(session: Session, tenant: str, key: str | None) -> Job | None:
    """The job that the tenant submitted under this key."""
    if key is None:
        return None
    return session.scalar(select(Job).where(Job.tenant == tenant, Job.idempotency_key == key))


def same(job: Job, spec: JobSpec) -> Job:
    """The job, if it is of this specification. Raises IdempotencyConflict."""
    if JobSpec.model_validate(job.spec) != spec:
        raise IdempotencyConflict(str(job.idempotency_key))
    return job


def fresh(session: Session, job: Job) -> Job:
    """The job with every value that the database computed, readable after the commit too."""
    session.flush()
    session.refresh(job)
    return job


def get(session: Session, job_id: str, tenant: str) -> Job:
    """The job as it is now. Raises JobNotFound, also for a job of another tenant."""
    job = session.get(Job, job_id, populate_existing=True)
    if job is None or job.tenant != tenant:
        raise JobNotFound(job_id)
    return job


def listing(
    session: Session, tenant: str, *, limit: int, after: str | None = None, status: JobStatus | None = None
) -> list[Job]:
    """At most `limit` jobs of a tenant, newest first, older than its job `after`. Raises JobNotFound for an unknown."""
    query = select(Job).where(Job.tenant == tenant).order_by(Job.created_at.desc(), Job.id.desc()).limit(limit)
    if after is not None:
        query = query.where(tuple_(Job.created_at, Job.id) < (get(session, after, tenant).created_at, after))
    if status is not None:
        query = query.where(Job.status == status)
    return list(session.scalars(query))


def lock(session: Session, job_id: str) -> Job | None:
    """The job as it is now, held against every other transition until the transaction ends."""
    query = select(Job).where(Job.id == job_id).with_for_update(key_share=True)
    return session.scalar(query, execution_options={"populate_existing": True})


def has_open(session: Session, job_id: str) -> bool:
    """Whether a shard of the job is still to be written, or being written."""
    return bool(session.scalar(select(exists().where(Shard.job_id == job_id, Shard.status.in_(OPEN_SHARD)))))


def cancel_shards(session: Session, job_id: str, *statuses: ShardStatus) -> None:
    """Take shards away from whoever holds them. The caller holds the job; the new fence refuses every later write."""
    session.execute(
        update(Shard)
        .where(Shard.job_id == job_id, Shard.status.in_(statuses))
        .values(status=ShardStatus.CANCELLED, fence=Shard.fence + 1, **UNLEASED),
        execution_options={"synchronize_session": False},
    )


def complete(session: Session, job_id: str) -> JobStatus | None:
    """End a job whose manifest is published, and say how; None when it is not FINALIZING, nor stopping and still."""
    job = lock(session, job_id)
    if job is None or not at_end(session, job):
        return None
    if job.status in STOPPING:
        close(session, job, STOPPED[job.status])
    elif job.num_rows > 0 and job.rows_succeeded == 0:
        close(session, job, JobStatus.FAILED, "no_row_succeeded", f"all {job.num_rows:,} rows are error rows")
    else:
        close(session, job, JobStatus.COMPLETED_WITH_ERRORS if job.rows_failed else JobStatus.COMPLETED)
    return job.status


def at_end(session: Session, job: Job) -> bool:
    """Whether the manifest is due. The caller holds the job."""
    if job.status in STOPPING:
        return not has_open(session, job.id)
    return job.status is JobStatus.FINALIZING


def fail_job(session: Session, job_id: str, *, code: str, message: str) -> bool:
    """End an open job as FAILED for this reason; its open shards are cancelled. False when it had ended already."""
    job = lock(session, job_id)
    if job is None or job.status.terminal:
        return False
    close(session, job, JobStatus.FAILED, code, message)
    return True


def close(session: Session, job: Job, status: JobStatus, code: str | None = None, message: str | None = None) -> None:
    """End a job that the caller holds, and tell its tenant's webhooks."""
    cancel_shards(session, job.id, ShardStatus.PENDING, ShardStatus.RUNNING)
    job.status, job.finished_at, job.lease_until = status, db_now(), None
    job.error_code, job.error_message = storable(code, 64), storable(message, 4096)
    session.flush()
    webhooks.announce_job(session, job)


def storable(text: str | None, limit: int) -> str | None:
    """Text that every database takes: cut to the column, without NUL and lone surrogates."""
    return text and text[:limit].replace("\0", "�").encode("utf-8", "replace").decode("utf-8")
