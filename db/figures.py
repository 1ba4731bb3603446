"""Figures: what the ledger knows of the service as a whole, for metrics. A handful of queries whose work does not grow
with the number of rows: totals stand on the jobs, and of shards only those at work are looked at."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from db.models import TERMINAL, Job, JobStatus, Shard, ShardStatus, Worker
from db.openai_models import Delivery
from db.session import db_now
from db.workers import workers

QUEUED = (JobStatus.VALIDATING, JobStatus.RUNNING)
TOTALS = ("rows_succeeded", "rows_failed", "prompt_tokens", "cached_tokens", "output_tokens")


@dataclass(frozen=True, slots=True)
class Queue:
    """Open jobs of one priority and status, and their shards."""

    priority: int
    status: JobStatus
    jobs: int
    shards_pending: int
    shards_running: int


@dataclass(frozen=True, slots=True)
class Figures:
    jobs: dict[JobStatus, int]  # every status
    totals: dict[str, int]  # over finished shards of all jobs, by the names of TOTALS
    rows_open: int  # of open jobs, not in a finished shard yet
    queues: list[Queue]
    oldest_queued_seconds: float  # since the submission of the oldest job that no shard was begun of; 0: there is none
    deliveries_pending: int  # of webhooks
    workers: list[Worker]  # seen within a minute
    now: float  # the database's clock


def figures(session: Session) -> Figures:
    """All of them, as of now."""
    now = float(session.scalar(select(db_now())) or 0.0)
    by_status = select(Job.status, func.count()).group_by(Job.status)
    counts = {status: count for status, count in session.execute(by_status)}  # noqa: C416 - rows are typed only unpacked
    columns = [func.coalesce(func.sum(getattr(Job, name)), 0) for name in TOTALS]
    totals = dict(zip(TOTALS, map(int, session.execute(select(*columns)).one()), strict=True))
    done = Job.rows_succeeded + Job.rows_failed
    open_rows = session.scalar(select(func.sum(Job.num_rows - done)).where(Job.status.not_in(TERMINAL)))
    unbegun = select(func.min(Job.created_at)).where(Job.status.in_(QUEUED), Job.running_at.is_(None))
    oldest = session.scalar(unbegun)
    pending = select(func.count()).select_from(Delivery).where(Delivery.status == "pending")
    return Figures(
        jobs={status: counts.get(status, 0) for status in JobStatus},
        totals=totals,
        rows_open=int(open_rows or 0),
        queues=_queues(session),
        oldest_queued_seconds=0.0 if oldest is None else max(0.0, now - oldest),
        deliveries_pending=session.scalar(pending) or 0,
        workers=workers(session),
        now=now,
    )


def _queues(session: Session) -> list[Queue]:
    """A job's pending shards are those that are neither done nor at work: they need not be counted."""
    key = (Job.priority, Job.status)
    undone = func.sum(Job.num_shards - Job.shards_done)  # not known before the split
    jobs = select(*key, func.count(), undone).where(Job.status.not_in(TERMINAL)).group_by(*key)
    at_work = select(*key, func.count()).join(Shard, Shard.job_id == Job.id)
    at_work = at_work.where(Job.status.not_in(TERMINAL), Shard.status == ShardStatus.RUNNING).group_by(*key)
    running = {(priority, status): count for priority, status, count in session.execute(at_work)}
    return [
        Queue(priority, status, num_jobs, max(0, int(shards or 0) - found), found)
        for priority, status, num_jobs, shards in session.execute(jobs.order_by(*key))
        for found in (running.get((priority, status), 0),)
    ]
