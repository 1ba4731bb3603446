"""How far a job was at some moments: what a picture of its throughput over time is drawn from, and its end estimated.

Any process that sweeps adds a point when the last one is old enough: two seconds at first, then a hundredth of the
time that the job has run. So a job that runs for a month has about a thousand points.
"""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import func, select
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.orm import Session

from db.ends import at_work
from db.models import Job, JobStatus, Shard, ShardStatus
from db.progress import progress
from db.sample_models import JobSample
from db.session import db_now

LEAST_SECONDS, SHARE = 2.0, 0.01
AT_ONCE = 20


@dataclass(frozen=True, slots=True)
class Point:
    """Rows and tokens per second between two samples, at the later one, in seconds since 1970."""

    at: float
    rows: float
    tokens: float


def record(session: Session, lease_seconds: float) -> None:
    """Add a point to the running jobs whose last one is old enough. Workers renew their leases by so much with every
    report, which is how old a point is known."""
    now = float(session.scalar(select(db_now())) or 0.0)
    last = _due(session, now, lease_seconds)
    if not last:  # as in most sweeps
        return
    known = at_work(session, last, lease_seconds)
    made = []
    for job_id, done in progress(session, last).items():
        tokens, work = done.prompt_tokens + done.output_tokens, known[job_id]
        at = min(work.reported_at or now, now)
        if at > last[job_id]:
            made.append({"job_id": job_id, "at": at, "rows": done.rows, "tokens": tokens, "bytes": work.bytes_done})
    if made:
        # Another process may sweep at this moment and know the same. In one order: no deadlock.
        insert = postgresql.insert if session.get_bind().dialect.name == "postgresql" else sqlite.insert
        rows = sorted(made, key=lambda row: str(row["job_id"]))
        session.execute(insert(JobSample).values(rows).on_conflict_do_nothing())


def _due(session: Session, now: float, lease_seconds: float) -> dict[str, float]:
    """Jobs that are due a point, and when they had their last one, or began. Those without any come first, then those
    that have waited longest. One whose shards have told nothing since keeps no other from its turn."""
    newest = select(func.max(JobSample.at)).where(JobSample.job_id == Job.id).scalar_subquery()
    told = (
        select(func.avg(Shard.lease_until) - lease_seconds)
        .where(Shard.job_id == Job.id, Shard.status == ShardStatus.RUNNING)
        .scalar_subquery()
    )
    last = func.coalesce(newest, Job.running_at)
    query = (
        select(Job.id, last)
        .where(
            Job.status == JobStatus.RUNNING,
            last <= now - LEAST_SECONDS,
            last <= now - (now - Job.running_at) * SHARE,
            func.coalesce(told, now) > last,
        )
        .order_by(newest.is_not(None), last)
        .limit(AT_ONCE)
    )
    return {job_id: float(at) for job_id, at in session.execute(query)}


def points(session: Session, job: Job) -> list[Point]:
    """The throughput of a job over its time so far."""
    if job.running_at is None:
        return []
    query = select(JobSample.at, JobSample.rows, JobSample.tokens).where(JobSample.job_id == job.id)
    found: list[Point] = []
    at, rows, tokens = job.running_at, 0, 0
    for now, rows_now, tokens_now in session.execute(query.order_by(JobSample.at)):
        if now > at:
            # A shard that was given back takes its counts along for a moment.
            gains = (max(0, rows_now - rows), max(0, tokens_now - tokens))
            found.append(Point(now, gains[0] / (now - at), gains[1] / (now - at)))
        at, rows, tokens = now, rows_now, tokens_now
    return found
