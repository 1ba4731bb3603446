"""Schedules as people handle them: create, list, pause, resume, run now, backfill, delete, history.

The caller owns the transaction. db.firing is what happens by itself.
"""

from __future__ import annotations

import hashlib
import secrets
from dataclasses import dataclass
from datetime import date

from sqlalchemy import func, select, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from db import schedule_specs
from db.errors import InvalidSchedule, ScheduleExists, ScheduleNotFound
from db.models import Job, JobStatus
from db.schedule_models import RunStatus, Schedule, ScheduleRun, Trigger
from db.schedule_specs import ScheduleSpec
from db.session import db_now

MOST_DATES = 1000  # of one backfill
COMPLETED = (JobStatus.COMPLETED, JobStatus.COMPLETED_WITH_ERRORS)


@dataclass(frozen=True, slots=True)
class Backfill:
    """Runs that a backfill added, oldest first, and how many fire times had one already."""

    runs: list[ScheduleRun]
    num_known: int


def now_of(session: Session) -> float:
    """The database's clock."""
    now = session.scalar(select(db_now()))
    assert now is not None
    return float(now)


def create(session: Session, tenant: str, name: str, spec: ScheduleSpec) -> tuple[Schedule, bool]:
    """The schedule, and whether it is new: the same name and specification, as of a request sent twice, give it again.

    Raises ScheduleExists, and InvalidSchedule for what can never work.
    """
    now = now_of(session)
    schedule_specs.check(spec, now)
    schedule = Schedule(id=f"sch_{secrets.token_hex(12)}", name=name, spec=spec.model_dump(mode="json"))
    schedule.tenant, schedule.next_at, schedule.created_at = tenant, spec.first_after(now), now
    try:
        with session.begin_nested():
            session.add(schedule)
    except IntegrityError:
        earlier = session.scalar(select(Schedule).where(Schedule.tenant == tenant, Schedule.name == name))
        if earlier is None or spec_of(earlier) != spec:
            raise ScheduleExists(name) from None
        return earlier, False
    return _fresh(session, schedule), True


def get(session: Session, tenant: str, name: str) -> Schedule:
    """By name or id. Raises ScheduleNotFound."""
    return _found(session, tenant, name, lock=False)


def _found(session: Session, tenant: str, name: str, *, lock: bool) -> Schedule:
    named = (Schedule.name == name) | (Schedule.id == name)
    query = select(Schedule).where(Schedule.tenant == tenant, named).order_by(Schedule.id != name)
    if lock:
        query = query.with_for_update()
    found = session.scalars(query, execution_options={"populate_existing": True}).first()
    if found is None:
        raise ScheduleNotFound(name)
    return found


def lock(session: Session, schedule_id: str) -> Schedule | None:
    """Held against every other change until the transaction ends."""
    query = select(Schedule).where(Schedule.id == schedule_id).with_for_update()
    return session.scalar(query, execution_options={"populate_existing": True})


def listing(session: Session, tenant: str) -> list[Schedule]:
    return list(session.scalars(select(Schedule).where(Schedule.tenant == tenant).order_by(Schedule.name)))


def pause(session: Session, tenant: str, name: str) -> Schedule:
    """It fires no more until it is resumed; what was fired goes on."""
    schedule = _found(session, tenant, name, lock=True)
    schedule.paused = True
    return _fresh(session, schedule)


def resume(session: Session, tenant: str, name: str) -> Schedule:
    """It fires again from the next fire time on; those that came while it was paused are not made up for."""
    schedule = _found(session, tenant, name, lock=True)
    if schedule.paused:
        schedule.paused = False
        schedule.next_at = spec_of(schedule).first_after(now_of(session))
    return _fresh(session, schedule)


def delete(session: Session, tenant: str, name: str) -> None:
    """The schedule and its history go; its jobs stay."""
    session.delete(_found(session, tenant, name, lock=True))
    session.flush()


def run_now(session: Session, tenant: str, name: str, *, key: str | None = None) -> tuple[ScheduleRun, bool]:
    """A run whose logical date is this moment, and whether it is new: the same key gives the same run again. No overlap
    policy keeps it."""
    schedule = _found(session, tenant, name, lock=True)
    if key is None:
        return add_run(session, schedule, now_of(session), Trigger.MANUAL), True
    run_id = "run_" + hashlib.blake2b(f"{schedule.id} {key}".encode(), digest_size=12).hexdigest()
    known = session.get(ScheduleRun, run_id)
    if known is not None:
        return known, False
    return add_run(session, schedule, now_of(session), Trigger.MANUAL, run_id=run_id), True


def backfill(session: Session, tenant: str, name: str, first: date, last: date, *, parallel: int = 1) -> Backfill:
    """A run for every fire time on these dates of the zone that has none, or whose run never became a job.

    They are worked off oldest first, `parallel` at once. Raises InvalidSchedule naming `first`, `last` or `parallel`.
    """
    schedule = _found(session, tenant, name, lock=True)
    spec, now = spec_of(schedule), now_of(session)
    if last < first:
        raise InvalidSchedule("last", f"{last} comes before {first}")
    if last > spec.timetable.local(now).date():
        raise InvalidSchedule("last", f"{last} lies in the future")
    if parallel > 1 and spec.job.only_new is not None:
        raise InvalidSchedule("parallel", "must be 1 where only new rows are computed: each run builds on the last")
    fires = [fire for fire in spec.timetable.of_dates(first, last, MOST_DATES + 1) if fire <= now]
    if len(fires) > MOST_DATES:
        raise InvalidSchedule("last", f"more than {MOST_DATES:,} fire times; take fewer dates at once")
    if not fires:
        raise InvalidSchedule("first", "the schedule does not fire on these dates")
    query = select(ScheduleRun).where(ScheduleRun.schedule_id == schedule.id, ScheduleRun.fire_at.in_(fires))
    known = {run.fire_at: run for run in session.scalars(query)}
    added = []
    for fire in fires:
        run = known.get(fire)
        if run is None:
            added.append(add_run(session, schedule, fire, Trigger.BACKFILL, parallel=parallel))
        elif run.job_id is None and run.status in (RunStatus.SKIPPED, RunStatus.FAILED):
            run.status, run.trigger, run.reason = RunStatus.WAITING, Trigger.BACKFILL, None
            run.try_at, run.failing_since, run.parallel = 0.0, None, parallel
            added.append(run)
    session.flush()
    return Backfill(added, len(fires) - len(added))


def add_run(
    session: Session,
    schedule: Schedule,
    fire: float,
    trigger: Trigger,
    *,
    status: RunStatus = RunStatus.WAITING,
    reason: str | None = None,
    parallel: int = 1,
    run_id: str | None = None,
) -> ScheduleRun:
    """The caller holds the schedule."""
    run_id = run_id or f"run_{secrets.token_hex(12)}"
    run = ScheduleRun(id=run_id, schedule_id=schedule.id, fire_at=fire, trigger=trigger)
    run.status, run.reason, run.parallel, run.created_at = status, reason, parallel, now_of(session)
    session.add(run)
    session.flush()
    return run


def history(
    session: Session, schedule: Schedule, *, limit: int, before: float | None = None
) -> list[tuple[ScheduleRun, Job | None]]:
    """Runs with their jobs, newest fire time first, those before `before`."""
    query = (
        select(ScheduleRun, Job)
        .outerjoin(Job, Job.id == ScheduleRun.job_id)
        .where(ScheduleRun.schedule_id == schedule.id)
        .order_by(ScheduleRun.fire_at.desc())
        .limit(limit)
    )
    if before is not None:
        query = query.where(ScheduleRun.fire_at < before)
    return [(run, job) for run, job in session.execute(query)]


def counts(session: Session, schedule_ids: list[str]) -> dict[str, dict[str, int]]:
    """Runs by schedule and by status: a job's where there is one, else the run's own."""
    query = (
        select(ScheduleRun.schedule_id, Job.status, ScheduleRun.status, func.count())
        .outerjoin(Job, Job.id == ScheduleRun.job_id)
        .where(ScheduleRun.schedule_id.in_(schedule_ids))
        .group_by(ScheduleRun.schedule_id, Job.status, ScheduleRun.status)
    )
    found: dict[str, dict[str, int]] = {schedule_id: {} for schedule_id in schedule_ids}
    for schedule_id, job_status, run_status, count in session.execute(query):
        name = (job_status or run_status).value
        found[schedule_id][name] = found[schedule_id].get(name, 0) + count
    return found


@dataclass(frozen=True, slots=True)
class Earlier:
    """The run that a job belongs to, and the outputs of the schedule's completed runs, in order of their fire times."""

    run: ScheduleRun
    outputs: list[str]


def earlier_of(session: Session, job_id: str) -> Earlier | None:
    """None: the job is of no schedule, or of one that was deleted."""
    run = session.scalar(select(ScheduleRun).where(ScheduleRun.job_id == job_id))
    if run is None:
        return None
    query = (
        select(Job.output_uri)
        .join(ScheduleRun, ScheduleRun.job_id == Job.id)
        .where(ScheduleRun.schedule_id == run.schedule_id, Job.id != job_id, Job.status.in_(COMPLETED))
        .order_by(ScheduleRun.fire_at)
    )
    return Earlier(run, list(session.scalars(query)))


def record_rows(session: Session, run_id: str, num_input: int, num_skipped: int) -> None:
    """Of a run that computes only new rows."""
    values = {"rows_input": num_input, "rows_skipped": num_skipped}
    session.execute(update(ScheduleRun).where(ScheduleRun.id == run_id).values(**values))


def spec_of(schedule: Schedule) -> ScheduleSpec:
    return ScheduleSpec.model_validate(schedule.spec)


def _fresh(session: Session, schedule: Schedule) -> Schedule:
    session.flush()
    session.refresh(schedule)
    return schedule
