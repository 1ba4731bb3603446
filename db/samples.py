"""How far a job was at some moments: what a picture of its throughput over time is drawn from, and its end estimated.

Any process that sweeps adds a point when the last one is old enough: two seconds at first, then a hundredth of the
time that the job has run. So a job that runs for a month has about a thousand points.
"""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from db.ends import at_work
from db.models import Job, JobStatus
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
    now = session.scalar(select(db_now())) or 0.0
    running = select(Job.id, Job.running_at).where(Job.status == JobStatus.RUNNING, Job.running_at.is_not(None))
    begun = {job_id: float(at or now) for job_id, at in session.execute(running.limit(AT_ONCE))}
    newest = select(JobSample.job_id, func.max(JobSample.at)).where(JobSample.job_id.in_(begun))
    last = {row[0]: row[1] for row in session.execute(newest.group_by(JobSample.job_id))}
    due = [
        job_id for job_id, at in begun.items() if now - last.get(job_id, at) >= max(LEAST_SECONDS, (now - at) * SHARE)
    ]
    if not due:  # as in most sweeps
        return
    known = at_work(session, due, lease_seconds)
    for job_id, done in progress(session, due).items():
        tokens, work = done.prompt_tokens + done.output_tokens, known[job_id]
        at = min(work.reported_at or now, now)
        if at > last.get(job_id, begun[job_id]):
            session.add(JobSample(job_id=job_id, at=at, rows=done.rows, tokens=tokens, bytes=work.bytes_done))


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
