"""Split and merge: the two phases of a job that one worker does alone, under the job's own lease and fence.

A phase that is begun raises the fence; later writes carry it, so that a worker that lost the lease (frozen, cut off)
changes nothing. An attempt that broke leaves its reason with the job and a pause before the next one.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import Any

from sqlalchemy import insert, select, update
from sqlalchemy.orm import Session

from db import jobs
from db.errors import InvalidDataset
from db.models import Job, JobStatus, Shard
from db.plans import ShardPlan
from db.session import db_now

INSERT_SIZE = 1000  # shards per INSERT
LEASE_SECONDS = 60.0


def begin_split(
    session: Session, job_id: str, max_attempts: int, *, lease_seconds: float = LEASE_SECONDS
) -> Job | None:
    """Take up the split of a VALIDATING job; None when there is none to take, or another worker holds it.

    A split that lasts longer than the lease calls `beat`. An attempt more than `max_attempts` fails the job instead.
    """
    job = jobs.lock(session, job_id)
    if job is None or job.status is not JobStatus.VALIDATING:
        return None
    return _begin(session, job, "split", max_attempts, lease_seconds)


def begin_merge(
    session: Session, job_id: str, max_attempts: int, *, lease_seconds: float = LEASE_SECONDS
) -> Job | None:
    """Take up the merge of a job without open shards; otherwise as `begin_split`."""
    job = jobs.lock(session, job_id)
    if job is None or not jobs.at_end(session, job):
        return None
    return _begin(session, job, "merge", max_attempts, lease_seconds)


def _begin(session: Session, job: Job, phase: str, max_attempts: int, lease_seconds: float) -> Job | None:
    now = session.scalar(select(db_now())) or 0.0
    if (job.lease_until or 0.0) > now:
        return None
    if job.attempts >= max_attempts:
        code = job.error_code or "worker_lost"
        reason = job.error_message or "its worker ended"
        jobs.close(session, job, JobStatus.FAILED, code, f"the {phase} broke off {job.attempts} times: {reason}")
        return None
    job.attempts += 1
    job.fence += 1
    job.lease_until = now + lease_seconds
    job.started_at = job.started_at or now
    return jobs.fresh(session, job)


def beat(session: Session, job: Job, *, lease_seconds: float = LEASE_SECONDS) -> bool:
    """Renew the lease of the phase that `job` was begun with; False when it is another's, or over: drop it."""
    beaten = session.execute(
        update(Job)
        .where(Job.id == job.id, Job.fence == job.fence, Job.lease_until.is_not(None))
        .values(lease_until=db_now() + lease_seconds)
        .returning(Job.id),
        execution_options={"synchronize_session": False},
    )
    return beaten.first() is not None


def give_back(session: Session, job: Job) -> bool:
    """The worker is told to stop: another may begin the phase at once, and the attempt is not counted."""
    held = _held(session, job)
    if held is None:
        return False
    held.attempts, held.lease_until, held.dispatched_at = held.attempts - 1, None, 0.0
    session.flush()
    return True


def retry(session: Session, job: Job, *, code: str, message: str, max_attempts: int, pause: float) -> bool:
    """The attempt broke: again after `pause` seconds, or after `max_attempts` the job fails with this reason."""
    held = _held(session, job)
    if held is None:
        return False
    if held.attempts >= max_attempts:
        jobs.close(session, held, JobStatus.FAILED, code, message)
        return True
    held.error_code, held.error_message = jobs.storable(code, 64), jobs.storable(message, 4096)
    held.lease_until, held.dispatched_at = db_now() + pause, 0.0
    session.flush()
    return True


def fail(session: Session, job: Job, *, code: str, message: str) -> bool:
    """End the job as FAILED for a reason that no retry would change; False when the phase is another's by now."""
    held = _held(session, job)
    if held is None:
        return False
    jobs.close(session, held, JobStatus.FAILED, code, message)
    return True


def _held(session: Session, job: Job) -> Job | None:
    """The job as it is now, locked, if the phase that `job` was begun with is still the caller's."""
    now = jobs.lock(session, job.id)
    return now if now is not None and now.fence == job.fence and now.lease_until is not None else None


def finish_split(
    session: Session, job: Job, *, prepared: dict[str, Any], shards: Iterable[ShardPlan], num_rows: int | None = None
) -> bool:
    """VALIDATING -> RUNNING with these shards; False when the split is not the caller's any more.

    Plans are taken lazily and inserted in batches. Raises InvalidDataset (`changed`) when they do not cover the rows
    that the job was accepted with, or `num_rows` where only the split could know which rows there are to compute. A
    job that was paused meanwhile stays paused.
    """
    held = _held(session, job)
    if held is None:
        return False
    if num_rows is not None:
        held.num_rows = num_rows
    num_shards = num_planned = num_bytes = 0
    plans = iter(shards)
    while batch := list(islice(plans, INSERT_SIZE)):
        for plan in batch:
            assert (plan.index, plan.first_row) == (num_shards, num_planned), plan
            num_shards, num_planned = num_shards + 1, num_planned + plan.num_rows
            num_bytes += plan.num_bytes
        session.execute(insert(Shard), [_columns(job.id, plan) for plan in batch])
    if num_planned != held.num_rows:
        reason = f"had {held.num_rows:,} rows at submission and has {num_planned:,} now"
        raise InvalidDataset("changed", str(held.spec["input"]), reason)
    assert num_shards > 0, "an empty input has one shard of no rows"
    if held.status is JobStatus.VALIDATING:
        held.status = JobStatus.RUNNING
    held.prepared, held.num_shards, held.lease_until, held.attempts = prepared, num_shards, None, 0
    held.error_code = held.error_message = None
    held.input_bytes = num_bytes
    session.flush()
    return True


def _columns(job_id: str, plan: ShardPlan) -> dict[str, Any]:
    rows = {"start_row": plan.start_row, "stop_row": plan.stop_row, "first_row": plan.first_row}
    of_file = {"file": plan.file, "file_version": plan.version, "input_bytes": plan.num_bytes}
    return {"job_id": job_id, "index": plan.index, **of_file, **rows}
