"""What a person, or a deadline, does to a job under way: pause, resume, cancel, expire.

A shard that was begun may have finished rows in its checkpoints. When its job is cancelled or expires it is not thrown
away: a worker takes it up once more, without an engine, and writes what is finished (worker.closing).
"""

from __future__ import annotations

from sqlalchemy import select, update
from sqlalchemy.orm import Session

from db import jobs, quotas
from db.errors import JobNotCancellable, JobNotFound, WrongState
from db.models import Job, JobStatus, Shard, ShardStatus
from db.session import db_now

# Sent at some time and to be sent again, so between 0 and dispatch.NEVER: a message that lies in the broker still may
# begin the job at any moment, and so it goes on counting as one that runs.
AGAIN = 5e-4
ALIVE = (JobStatus.VALIDATING, JobStatus.RUNNING, JobStatus.PAUSED)


def cancel(session: Session, job_id: str, tenant: str) -> Job:
    """Stop a job: shards that were never begun at once, running ones at their next beat; finished rows are kept.

    CANCELLED directly when no shard was begun, else CANCELLING until the manifest tells what there is. Asking again is
    fine. Raises JobNotFound, and JobNotCancellable for a job that is finalizing or has ended.
    """
    job = _locked(session, job_id, tenant)
    if job.status in (JobStatus.CANCELLING, JobStatus.CANCELLED):
        return job
    if job.status not in ALIVE:
        raise JobNotCancellable(job_id, job.status)
    session.execute(
        update(Shard)
        .where(Shard.job_id == job_id, Shard.status == ShardStatus.PENDING, Shard.fence == 0)
        .values(status=ShardStatus.CANCELLED),
        execution_options={"synchronize_session": False},
    )
    _stop(session, job, JobStatus.CANCELLING)
    return jobs.fresh(session, job)


def expire(session: Session, job_id: str) -> Job | None:
    """The deadline has come: as a cancel, but every row is written, the unfinished ones as expired.

    None when the job is past that point, or held by another transition: then the next sweep does it.
    """
    job = jobs.lock(session, job_id)
    if job is None or job.status not in ALIVE:
        return None
    _stop(session, job, JobStatus.EXPIRING)
    return job


def _stop(session: Session, job: Job, stopping: JobStatus) -> None:
    if job.shards_done == 0 and not jobs.has_open(session, job.id):
        jobs.close(session, job, jobs.STOPPED[stopping])
        return
    job.status, job.dispatched_at, job.attempts, job.lease_until = stopping, 0.0, 0, None
    # Nothing is waited for: what is left to do takes no engine.
    session.execute(
        update(Shard)
        .where(Shard.job_id == job.id, Shard.status.in_(jobs.OPEN_SHARD))
        .values(not_before=0.0, dispatched_at=0.0, attempts=0),
        execution_options={"synchronize_session": False},
    )
    session.flush()


def pause(session: Session, job_id: str, tenant: str) -> Job:
    """Begin nothing more of a job; what runs is saved and given back at its next beat. Asking again is fine.

    Raises JobNotFound, and WrongState for a job that is finalizing, stopping or at its end.
    """
    job = _locked(session, job_id, tenant)
    if job.status not in ALIVE:
        raise WrongState(job_id, job.status, "paused")
    job.status = JobStatus.PAUSED
    return jobs.fresh(session, job)


def resume(session: Session, job_id: str, tenant: str) -> Job:
    """Go on with a paused job; one that is not paused goes on anyway.

    A job that was begun needs room among those that its tenant may run at once; one that was not waits for it, as after
    its submission. Raises JobNotFound, QuotaExceeded, and WrongState as `pause`.
    """
    job = _locked(session, job_id, tenant)
    if job.status not in ALIVE:
        raise WrongState(job_id, job.status, "resumed")
    if job.status is JobStatus.PAUSED:
        is_split, was_sent = job.num_shards is not None, job.dispatched_at > 0.0
        if is_split or was_sent:
            quotas.check_running(session, tenant)
        job.status = JobStatus.RUNNING if is_split else JobStatus.VALIDATING
        job.dispatched_at, job.resumed_at = AGAIN if was_sent and not is_split else 0.0, db_now()
        # Workers that were woken meanwhile found nothing to do; without new messages these would wait to count as lost.
        sent = update(Shard).where(
            Shard.job_id == job_id, Shard.status == ShardStatus.PENDING, Shard.dispatched_at > 0.0
        )
        session.execute(sent.values(dispatched_at=0.0), execution_options={"synchronize_session": False})
    return jobs.fresh(session, job)


def expire_due(session: Session, limit: int = 100) -> None:
    """Expire the jobs whose deadline has passed; those that another transaction holds are left to the next call."""
    due = select(Job.id).where(Job.expires_at < db_now(), Job.status.in_(ALIVE)).limit(limit)
    for job_id in session.scalars(due.with_for_update(key_share=True, skip_locked=True)).all():
        expire(session, job_id)


def _locked(session: Session, job_id: str, tenant: str) -> Job:
    job = jobs.lock(session, job_id)
    if job is None or job.tenant != tenant:
        raise JobNotFound(job_id)
    return job
