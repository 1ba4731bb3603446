"""Windows: what was measured of a job's rows, by spans of equal length since its first shard began.

A shard's histograms go to the window in which it is finished, in the transaction that finishes it: a shard that is done
again counts once. There are at most 24 windows: at first of a minute each, and when the job outlasts them, two
neighbours become one. The job's own histograms are the sum of its windows.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import reduce

from sqlalchemy import delete, func, select
from sqlalchemy.orm import Session

from db import histograms
from db.histograms import Histograms, Percentiles
from db.models import Job
from db.sample_models import JobWindow
from db.session import db_now

MOST, FIRST_SECONDS = 24, 60


@dataclass(frozen=True, slots=True)
class Window:
    """[began, ended) in seconds since 1970, and what was measured in the shards that were finished then."""

    began: float
    ended: float
    histograms: Histograms

    @property
    def percentiles(self) -> dict[str, Percentiles]:
        return histograms.summary(self.histograms)


def add(session: Session, job: Job, measured: Histograms) -> None:
    """What was measured in a shard that is finished now. The caller holds the job."""
    if not measured:
        return
    now = float(session.scalar(select(db_now())) or 0.0)
    elapsed = max(now - (job.running_at or now), 0.0)
    seconds = session.scalar(select(func.max(JobWindow.seconds)).where(JobWindow.job_id == job.id)) or FIRST_SECONDS
    while elapsed >= MOST * seconds:
        seconds *= 2
        _widen(session, job.id, seconds)
    index = int(elapsed // seconds)
    window = session.get(JobWindow, (job.id, index))
    if window is None:
        session.add(JobWindow(job_id=job.id, index=index, seconds=seconds, histograms=measured))
    else:
        window.histograms = dict(histograms.added(window.histograms, measured))
    session.flush()


def _widen(session: Session, job_id: str, seconds: int) -> None:
    """Two neighbours become one of this length."""
    wider: dict[int, Histograms] = {}
    for window in session.scalars(select(JobWindow).where(JobWindow.job_id == job_id)):
        index = window.index // 2
        wider[index] = histograms.added(wider.get(index, {}), window.histograms)
        session.expunge(window)
    session.execute(delete(JobWindow).where(JobWindow.job_id == job_id))
    made = (JobWindow(job_id=job_id, index=index, seconds=seconds, histograms=each) for index, each in wider.items())
    session.add_all(made)
    session.flush()


def of(session: Session, job: Job) -> list[Window]:
    """In the order of time; those in which no shard was finished are left out. A job has none before its first."""
    if not job.shards_done:
        return []
    began = job.running_at or job.created_at
    query = select(JobWindow).where(JobWindow.job_id == job.id).order_by(JobWindow.index)
    return [
        Window(began + each.index * each.seconds, began + (each.index + 1) * each.seconds, each.histograms)
        for each in session.scalars(query)
    ]


def whole(windows: Iterable[Window]) -> dict[str, Percentiles]:
    """The percentiles of the job."""
    return histograms.summary(reduce(histograms.added, (each.histograms for each in windows), {}))
