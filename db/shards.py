"""The life of a shard: leased by compare-and-set, and written only under the fence of the lease.

A claim raises the shard's fence by one. Every later write of the holder demands that fence and the state RUNNING; when
another worker has claimed the shard since, or the job was closed, no row matches and the holder must drop its work.
A lease past its end may be renewed or finished as long as nobody else took it. Only the database's clock is compared.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from sqlalchemy import ColumnElement, and_, case, select, update
from sqlalchemy.orm import Session, sessionmaker

from db import histograms, jobs, turns, windows
from db.models import STOPPING, Job, JobStatus, Shard, ShardStatus
from db.progress import Progress
from db.session import db_now
from db.specs import JobSpec
from db.stores import Place
from db.turns import WORKING, free

UNSYNCED = {"synchronize_session": False}
ALIVE = (JobStatus.RUNNING, JobStatus.PAUSED)  # a shard that is given back is taken up again


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
    attempts: int  # since one got on, this one included if it is counted
    spec: JobSpec
    output_uri: str
    tenant: str
    prepared: dict[str, Any] = field(default_factory=dict)
    marks: int = 0  # of the checkpoints, as the attempt before saw them
    stopping: JobStatus | None = None  # the job is: write what is finished, and compute nothing
    file_version: str | None = None  # what `file` must be
    place: Place | None = None  # where `file` lies, once the worker has resolved it under its roots
    counted: bool = True  # this attempt is one of `attempts`
    input_bytes: int = 0  # see Job.input_bytes

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
    PAUSE = "pause"  # stop, then call `release`
    CANCEL = "cancel"  # stop, write what is finished, then call `finish`, or `cancelled` if there is nothing
    EXPIRE = "expire"  # the same, and unfinished rows are written as expired
    LOST = "lost"  # stop and write nothing: the shard is another's


BEATS = {JobStatus.PAUSED: Beat.PAUSE, JobStatus.CANCELLING: Beat.CANCEL, JobStatus.EXPIRING: Beat.EXPIRE}


@dataclass(frozen=True, slots=True)
class Finish:
    """Whether the shard is now done by this claim, and whether the job's manifest is due because it was the last."""

    accepted: bool
    last: bool


def take(
    sessions: sessionmaker[Session],
    *,
    owner: str,
    lease_seconds: float,
    max_attempts: int,
    stop: Callable[[], bool] = lambda: False,
) -> Claim | None:
    """Lease the shard whose turn it is, whatever message woke the worker; None: nothing is free.

    Another worker may be quicker: then the next one's, since the message is gone, and a shard that was sent waits long
    for another. Every round that gives nothing was another's success, or gave up a shard that was tried too often;
    neither is chosen again, so there is an end. After `stop` there is no further round.
    """
    while True:
        with sessions.begin() as session:  # of each round its own: no lock is held while another is wanted
            shard_id = turns.choose(session)
            if shard_id is None:
                return None
            taken = claim(session, shard_id, owner=owner, lease_seconds=lease_seconds, max_attempts=max_attempts)
        if taken is not None or stop():
            return taken


def claim(session: Session, shard_id: int, *, owner: str, lease_seconds: float, max_attempts: int) -> Claim | None:
    """Lease a free shard; None when there is nothing to do.

    A shard that was tried `max_attempts` times without getting on and is free again (its workers died) fails, and its
    job with it.
    """
    job = _lock_job(session, shard_id)
    if job is None or job.status not in WORKING:
        return None
    wanted = and_(Shard.id == shard_id, free())
    shard = session.scalar(
        update(Shard)
        .where(wanted, Shard.attempts < max_attempts)
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
        tired = session.scalar(select(Shard).where(wanted, Shard.attempts >= max_attempts))
        if tired is not None:
            reason = tired.error_message or "its worker died"
            code = tired.error_code or "worker_lost"
            _give_up(session, tired.id, job, code, f"broke off {tired.attempts} times without getting on: {reason}")
        return None
    job.running_at = job.running_at or session.scalar(select(db_now()))
    session.flush()
    return _claimed(job, shard)


def _claimed(job: Job, shard: Shard) -> Claim:
    return Claim(
        shard_id=shard.id,
        job_id=job.id,
        index=shard.index,
        file=shard.file,
        start_row=shard.start_row,
        stop_row=shard.stop_row,
        first_row=shard.first_row,
        fence=shard.fence,
        attempts=shard.attempts,
        spec=JobSpec.model_validate(job.spec),
        output_uri=job.output_uri,
        tenant=job.tenant,
        prepared=job.prepared or {},
        marks=shard.marks,
        stopping=job.status if job.status in STOPPING else None,
        file_version=shard.file_version,
        input_bytes=shard.input_bytes,
    )


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
    return BEATS.get(status, Beat.OK) if status is not None else Beat.LOST


def got_on(session: Session, claim: Claim, marks: int) -> Claim | None:
    """Tell how long the checkpoints are: longer than the attempt before found them, and attempts count from one again.

    Gives the claim as it is now; None when the lease was lost.
    """
    if marks <= claim.marks:
        return replace(claim, marks=marks) if _write(session, claim, marks=marks) else None
    if not _write(session, claim, marks=marks, attempts=1):
        return None
    return replace(claim, marks=marks, attempts=1, counted=True)


def count(session: Session, claim: Claim, *, counted: bool) -> Claim | None:
    """Whether the attempt counts. It does not while it waits for an engine in which another shard's rows are: whatever
    ends it then, its own rows do not.

    Gives the claim as it is now; None when the lease was lost.
    """
    more = counted - claim.counted
    if not _write(session, claim, attempts=_attempts(more)):
        return None
    return replace(claim, attempts=claim.attempts + more, counted=counted)


def _attempts(more: int) -> ColumnElement[int]:
    """So many more. A job that is stopped counts from 0 again, which the holder does not know of before its next beat:
    what it knows must not be written over that."""
    return case((Shard.attempts + more > 0, Shard.attempts + more), else_=0)


def finish(
    session: Session, claim: Claim, *, progress: Progress, part: PartFile, counters: dict[str, float] | None = None
) -> Finish:
    """The shard is done and its part published; the job's totals grow in the same transaction.

    `counters` are what the engine did meanwhile, with the buckets of what was measured among them, which go to the
    job's windows. Rows that a stopping job leaves undone are not in `progress`. Refused
    (`accepted` is False) when the lease was lost or the job has ended.
    """
    job = jobs.lock(session, claim.job_id)
    whole = progress.rows == claim.num_rows
    assert whole or job is None or job.status not in ALIVE, f"{progress.rows} of {claim.num_rows} rows are done"
    others, measured = histograms.of_counters(counters or {})
    done = {"part": part.name, "part_bytes": part.num_bytes, "part_sha256": part.sha256, "counters": others or None}
    closed = {"status": ShardStatus.DONE, "owner": None, "lease_until": None, "error_code": None, "error_message": None}
    if job is None or not _write(session, claim, **closed, **done, **progress.as_columns()):
        return Finish(accepted=False, last=False)
    job.shards_done += 1
    job.bytes_done += claim.input_bytes
    for name, count in progress.as_columns().items():
        setattr(job, name, getattr(job, name) + count)
    windows.add(session, job, measured)
    if job.status in ALIVE and job.shards_done == job.num_shards:
        job.status, job.dispatched_at = JobStatus.FINALIZING, 0.0
    session.flush()
    return Finish(accepted=True, last=jobs.at_end(session, job))


def release(session: Session, claim: Claim) -> bool:
    """Give the shard back, the attempt not counted: the worker is told to stop. False when the lease was lost."""
    return _reopen(session, claim, attempts=_attempts(-claim.counted))


def retry(session: Session, claim: Claim, *, code: str, message: str, max_attempts: int, pause: float = 0.0) -> bool:
    """The attempt broke off: the shard is pending again after `pause` seconds, or after `max_attempts` has failed.

    Then its job fails with it; not one that was stopped meanwhile, which only has to write what is finished. False when
    the lease was lost.
    """
    job = jobs.lock(session, claim.job_id)
    error = {"error_code": jobs.storable(code, 64), "error_message": jobs.storable(message, 4096)}
    stopped_since = job is not None and job.status in STOPPING and claim.stopping is None
    if job is None or claim.attempts < max_attempts or stopped_since:
        return _reopen(session, claim, not_before=db_now() + pause, **error)
    if not _write(session, claim, status=ShardStatus.FAILED):
        return False
    _give_up(session, claim.shard_id, job, code, message)
    return True


def _reopen(session: Session, claim: Claim, **values: Any) -> bool:
    """Back to pending. In a job that is stopping, too: its finished rows are still to be written."""
    jobs.lock(session, claim.job_id)
    free = {"status": ShardStatus.PENDING, "dispatched_at": 0.0, **jobs.UNLEASED}
    return _write(session, claim, **free, **values)


def _give_up(session: Session, shard_id: int, job: Job, code: str, message: str) -> None:
    """Fail the shard and its job. The caller holds the job's lock and knows that the shard is its to fail."""
    values = {"status": ShardStatus.FAILED, "fence": Shard.fence + 1, **jobs.UNLEASED}
    error = {"error_code": jobs.storable(code, 64), "error_message": jobs.storable(message, 4096)}
    session.execute(update(Shard).where(Shard.id == shard_id).values(**values, **error), execution_options=UNSYNCED)
    index = session.scalar(select(Shard.index).where(Shard.id == shard_id))
    jobs.fail_job(session, job.id, code=code, message=f"shard {index}: {message}")


def cancelled(session: Session, claim: Claim) -> bool:
    """The job is stopping and the shard has no finished row. True when it was the last open one: a merge is due."""
    job = jobs.lock(session, claim.job_id)
    if job is None or job.status not in STOPPING:
        return False
    stopped = _write(session, claim, status=ShardStatus.CANCELLED, **jobs.UNLEASED)
    return stopped and jobs.at_end(session, job)
