"""When jobs end: what the ledger knows of their courses, for db.eta to estimate from."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from db.eta import End, Milestone, end_of
from db.models import Job, JobStatus, Shard, ShardStatus
from db.progress import Progress
from db.sample_models import JobSample
from db.workers import workers

MOVING = (JobStatus.RUNNING, JobStatus.FINALIZING)  # jobs that have an end in sight


@dataclass(frozen=True, slots=True)
class AtWork:
    """What a job's running shards tell beside their counts."""

    bytes_done: int  # of the job's input; of these shards' in proportion to their rows
    open_rows: int
    reported_at: float | None  # when they told it, a mean; None: there are none


def ends(
    session: Session, found: Sequence[Job], done: Mapping[str, Progress], now: float, lease_seconds: float
) -> dict[str, End]:
    """When the jobs end that are under way, as far as that can be said: by their courses since they began, or since
    they were resumed. `done` is how far they are; workers renew their leases by so much with every report."""
    moving = {job.id: job for job in found if job.status in MOVING and job.running_at is not None}
    if not moving:
        return {}
    courses = {
        job_id: [] if job.resumed_at else [Milestone(job.running_at or now, 0)] for job_id, job in moving.items()
    }
    query = select(JobSample.job_id, JobSample.at, JobSample.rows, JobSample.bytes).where(JobSample.job_id.in_(moving))
    for job_id, at, rows, num_bytes in session.execute(query.order_by(JobSample.at)):
        if at >= (moving[job_id].resumed_at or 0.0):
            courses[job_id].append(Milestone(at, rows, num_bytes))
    known, running = at_work(session, moving, lease_seconds), _running(session, lease_seconds)
    made = {}
    for job_id, job in moving.items():
        work = known[job_id]
        last = Milestone(work.reported_at or now, done[job_id].rows, work.bytes_done)
        in_flight = min(running.get(str(job.spec["model"]), 0), work.open_rows)
        end = end_of([*courses[job_id], last], job.num_rows, job.input_bytes, now, in_flight)
        if end is not None:
            made[job_id] = end
    return made


def at_work(session: Session, job_ids: Iterable[str], lease_seconds: float) -> dict[str, AtWork]:
    """By job."""
    done, rows = Shard.rows_succeeded + Shard.rows_failed, Shard.stop_row - Shard.start_row
    running = (
        select(
            Shard.job_id,
            func.sum(Shard.input_bytes * done / func.nullif(rows, 0)).label("bytes"),
            func.sum(rows - done).label("open"),
            (func.avg(Shard.lease_until) - lease_seconds).label("at"),
        )
        .where(Shard.status == ShardStatus.RUNNING, Shard.job_id.in_(ids := list(job_ids)))
        .group_by(Shard.job_id)
        .subquery()
    )
    total = Job.bytes_done + func.coalesce(running.c.bytes, 0)
    query = select(Job.id, total, func.coalesce(running.c.open, 0), running.c.at)
    found = session.execute(query.outerjoin(running, running.c.job_id == Job.id).where(Job.id.in_(ids)))
    return {job_id: AtWork(int(num_bytes), int(open_rows), at) for job_id, num_bytes, open_rows, at in found}


def _running(session: Session, lease_seconds: float) -> dict[str, int]:
    """By model: requests that run in the engines of the workers. One that is silent for longer than a lease has none:
    neither do its shards run any more."""
    total: dict[str, int] = {}
    for worker in workers(session, seconds=lease_seconds):
        total[worker.model or ""] = total.get(worker.model or "", 0) + int(worker.stats.get("running", 0))
    return total
