"""The life of a shard: leased by compare-and-set, and written only under the fence of the lease.

A claim raises the shard's fence by one. Every later write of the holder demands that fence and the state RUNNING; when
another worker has claimed the shard since, or the job was closed, no row matches and the holder must drop its work.
A lease past its end may be renewed or finished as long as nobody else took it. Only the database's clock is compared.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import and_, or_, select, update
from sqlalchemy.orm import Session

from db import jobs
from db.models import Job, JobStatus, Shard, ShardStatus
from db.progress import Progress
from db.session import db_now
from db.specs import JobSpec

UNSYNCED = {"synchronize_session": False}


@dataclass(frozen=True, slots=True)
class Claim:
    """A leased shard: rows [start_row, stop_row) of `file`, and the fence that its writes must carry."""

    shard_id: int
    job_id: str
    index: int
    file: str
    start_row: int
    stop_row: int
    first_row: int
    fence: int
    attempts: int  # this one included
    spec: JobSpec
    output_uri: str
    prepared: dict[str, Any] = field(default_factory=dict)

    @property
    def num_rows(self) -> int:
        return self.stop_row - self.start_row


@dataclass(frozen=True, slots=True)
class PartFile:
    """A published part: its name inside the output folder, size and checksum."""

    name: str
    num_bytes: int
    sha256: str


class Beat(enum.Enum):
    """What a heartbeat tells the holder."""

    OK = "ok"
    CANCEL = "cancel"  # stop, then call `cancelled`
    LOST = "lost"  # stop and write nothing: the shard is another's


@dataclass(frozen=True, slots=True)
class Finish:
    """Whether the shard is now done by this claim, and whether the job's manifest is due because it was the last."""

    accepted: bool
    last: bool


def claim(session: Session, shard_id: int, *, owner: str, lease_seconds: float, max_attempts: int) -> Claim | None:
    """Lease a shard that is pending or whose lease is dead; None when there is nothing to do.

    A shard that was tried `max_attempts` times and is open again (its workers died) fails, and its job with it.
    """
    job = _lock_job(session, shard_id)
    if job is None or job.status is not JobStatus.RUNNING:
        return None
    dead = and_(Shard.status == ShardStatus.RUNNING, Shard.lease_until < db_now())
    free = and_(Shard.id == shard_id, or_(Shard.status == ShardStatus.PENDING, dead))
    shard = session.scalar(
        update(Shard)
        .where(free, Shard.attempts < max_attempts)
        .values(
            status=ShardStatus.RUNNING,
            fence=Shard.fence + 1,
            attempts=Shard.attempts + 1,
            owner=owner[:255],
            lease_until=db_now() + lease_seconds,
            **Progress().as_columns(),
        )
        .returning(Shard),
        execution_options={**UNSYNCED, "populate_existing": True},
    )
    if shard is None:
        tired = session.scalar(select(Shard).where(free, Shard.attempts >= max_attempts))
        if tired is not None:
            _give_up(session, tired.id, job, "worker_lost", f"its worker died in each of {tired.attempts} attempts")
        return None
    job.running_at = job.running_at or session.scalar(select(db_now()))
    session.flush()
    rows = (shard.id, job.id, shard.index, shard.file, shard.start_row, shard.stop_row, shard.first_row)
    spec = JobSpec.model_validate(job.spec)
    return Claim(*rows, shard.fence, shard.attempts, spec, job.output_uri, job.prepared or {})


def _lock_job(session: Session, shard_id: int) -> Job | None:
    job_id = session.scalar(select(Shard.job_id).where(Shard.id == shard_id))
    return None if job_id is None else jobs.lock(session, job_id)


def _write(session: Session, claim: Claim, **values: Any) -> bool:
    """The one way to change a claimed shard: by compare-and-set on its fence and state."""
    written = session.execute(
        update(Shard)
        .where(Shard.id == claim.shard_id, Shard.fence == claim.fence, Shard.status == ShardStatus.RUNNING)
        .values(**values)
        .returning(Shard.id),
        execution_options=UNSYNCED,
    )
    return written.first() is not None


def beat(session: Session, claim: Claim, *, lease_seconds: float, progress: Progress) -> Beat:
    """Renew the lease, store the progress, and learn whether to go on.

    One claim per transaction: PostgreSQL could find two transactions waiting for each other's shards.
    """
    if not _write(session, claim, lease_until=db_now() + lease_seconds, **progress.as_columns()):
        return Beat.LOST
    status = session.scalar(select(Job.status).where(Job.id == claim.job_id))
    return Beat.OK if status is JobStatus.RUNNING else Beat.CANCEL


def finish(
    session: Session, claim: Claim, *, progress: Progress, part: PartFile, counters: dict[str, float] | None = None
) -> Finish:
    """The shard is done and its part published; the job's totals grow in the same transaction.

    `counters` are what the engine did meanwhile. A cancelling job keeps the rows too. Refused (`accepted` is False)
    when the lease was lost or the job has ended.
    """
    assert progress.rows == claim.num_rows, f"shard {claim.shard_id}: {progress.rows} of {claim.num_rows} rows"
    job = jobs.lock(session, claim.job_id)
    done = {"part": part.name, "part_bytes": part.num_bytes, "part_sha256": part.sha256, "counters": counters}
    closed = {"status": ShardStatus.DONE, "owner": None, "lease_until": None, "error_code": None, "error_message": None}
    if job is None or not _write(session, claim, **closed, **done, **progress.as_columns()):
        return Finish(accepted=False, last=False)
    job.shards_done += 1
    for name, count in progress.as_columns().items():
        setattr(job, name, getattr(job, name) + count)
    if job.status is JobStatus.RUNNING and job.shards_done == job.num_shards:
        job.status, job.dispatched_at = JobStatus.FINALIZING, 0.0
    session.flush()
    return Finish(accepted=True, last=_manifest_due(session, job))


def _manifest_due(session: Session, job: Job) -> bool:
    if job.status is JobStatus.CANCELLING:
        return not jobs.has_running(session, job.id)
    return job.status is JobStatus.FINALIZING


def release(session: Session, claim: Claim) -> bool:
    """Give the shard back, the attempt not counted: the worker is told to stop. False when the lease was lost."""
    return _reopen(session, claim, attempts=claim.attempts - 1)


def retry(session: Session, claim: Claim, *, code: str, message: str, max_attempts: int) -> bool:
    """The attempt broke off: the shard is pending again, or after `max_attempts` has failed, and its job with it.

    False when the lease was lost.
    """
    job = jobs.lock(session, claim.job_id)
    error = {"error_code": jobs.storable(code, 64), "error_message": jobs.storable(message, 4096)}
    if job is None or claim.attempts < max_attempts or job.status is not JobStatus.RUNNING:
        return _reopen(session, claim, **error)
    if not _write(session, claim, status=ShardStatus.FAILED):
        return False
    _give_up(session, claim.shard_id, job, code, message)
    return True


def _reopen(session: Session, claim: Claim, **values: Any) -> bool:
    """Back to pending; in a job that is being cancelled there is no way back, and the shard is cancelled."""
    job = jobs.lock(session, claim.job_id)
    status = ShardStatus.PENDING if job is not None and job.status is JobStatus.RUNNING else ShardStatus.CANCELLED
    free = {"status": status, "dispatched_at": 0.0, **jobs.UNLEASED}
    return _write(session, claim, **free, **values)


def _give_up(session: Session, shard_id: int, job: Job, code: str, message: str) -> None:
    """Fail the shard and its job. The caller holds the job's lock and knows that the shard is its to fail."""
    values = {"status": ShardStatus.FAILED, "fence": Shard.fence + 1, **jobs.UNLEASED}
    error = {"error_code": jobs.storable(code, 64), "error_message": jobs.storable(message, 4096)}
    session.execute(update(Shard).where(Shard.id == shard_id).values(**values, **error), execution_options=UNSYNCED)
    index = session.scalar(select(Shard.index).where(Shard.id == shard_id))
    jobs.fail_job(session, job.id, code=code, message=f"shard {index}: {message}")


def cancelled(session: Session, claim: Claim) -> bool:
    """The holder stopped because of a cancel. True when it was the last one running: the manifest is due."""
    job = jobs.lock(session, claim.job_id)
    if job is None or job.status is not JobStatus.CANCELLING:
        return False
    stopped = _write(session, claim, status=ShardStatus.CANCELLED, **jobs.UNLEASED)
    return stopped and _manifest_due(session, job)
