"""Schedules in a given state, and a clock to move."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pyarrow as pa
import pyarrow.parquet as pq
from sqlalchemy import select, update

from db import firing, schedules
from db.jobs import close
from db.models import Job, JobStatus
from db.schedule_models import Schedule, ScheduleRun
from db.schedule_specs import ScheduleSpec
from db.settings import Settings
from tests.db.ledger import Sessions

BERLIN = ZoneInfo("Europe/Berlin")
DAY = 86_400.0


def at(text: str) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=BERLIN).timestamp()


def spec(folder: Path, **values: Any) -> ScheduleSpec:
    """Every night at half past two in Berlin."""
    job = {
        "input": str(folder / "in" / "{{ ds }}.parquet"),
        "output": str(folder / "out" / "{{ ds }}"),
        "recipe": {"kind": "summarize"},
        "model": "m",
        **values.pop("job", {}),
    }
    given = {"cron": "30 2 * * *", "timezone": "Europe/Berlin", "job": job, **values}
    return ScheduleSpec.model_validate(given)


def add(sessions: Sessions, made: ScheduleSpec, now: float, name: str = "nightly") -> str:
    """A schedule as if created at `now`; its id."""
    with sessions.begin() as session:
        schedule, _ = schedules.create(session, "default", name, made)
        schedule.next_at = made.first_after(now)
        return schedule.id


def write(folder: Path, *days: str, rows: int = 3) -> None:
    (folder / "in").mkdir(exist_ok=True)
    for day in days:
        pq.write_table(pa.table({"text": [f"text {i}" for i in range(rows)]}), folder / "in" / f"{day}.parquet")


def sweep(sessions: Sessions, settings: Settings, now: float) -> int:
    return firing.sweep(sessions, settings, clock=lambda session: now)


def runs(sessions: Sessions) -> list[tuple[str, str, str]]:
    """Date, trigger and status, in order of the fire times; the status is a job's where there is one."""
    query = select(ScheduleRun, Job).outerjoin(Job, Job.id == ScheduleRun.job_id).order_by(ScheduleRun.fire_at)
    with sessions.begin() as session:
        return [
            (f"{datetime.fromtimestamp(run.fire_at, BERLIN):%m-%d}", run.trigger.value, (job or run).status.value)
            for run, job in session.execute(query)
        ]


def reasons(sessions: Sessions) -> list[str | None]:
    with sessions.begin() as session:
        return list(session.scalars(select(ScheduleRun.reason).order_by(ScheduleRun.fire_at)))


def job_of(sessions: Sessions, day: str) -> Job:
    """The job of the run of this date (MM-DD)."""
    query = select(ScheduleRun, Job).join(Job, Job.id == ScheduleRun.job_id)
    with sessions.begin() as session:
        return next(
            job for run, job in session.execute(query) if f"{datetime.fromtimestamp(run.fire_at, BERLIN):%m-%d}" == day
        )


def end(sessions: Sessions, day: str, status: JobStatus = JobStatus.COMPLETED) -> None:
    job = job_of(sessions, day)
    with sessions.begin() as session:
        close(session, session.get_one(Job, job.id), status)


def become(sessions: Sessions, day: str, status: JobStatus) -> None:
    job = job_of(sessions, day)
    with sessions.begin() as session:
        session.execute(update(Job).where(Job.id == job.id).values(status=status))


def next_at(sessions: Sessions) -> str | None:
    with sessions.begin() as session:
        found = session.scalar(select(Schedule.next_at))
    return None if found is None else datetime.fromtimestamp(found, BERLIN).isoformat(timespec="minutes")
