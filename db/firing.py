"""What schedules do by themselves. Every API and worker process calls `sweep` every few seconds; there is no leader.

A fire time is taken by compare-and-set on `schedules.next_at`, in the transaction that writes its run down: whichever
process dies, the run is there once or not at all. db.starting makes a job of it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from sqlalchemy import and_, func, or_, select, update
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session, sessionmaker

from db import control, jobs, schedules, starting
from db.accounts import DISABLED
from db.errors import QuotaExceeded
from db.models import JobStatus
from db.schedule_models import RunStatus, Schedule, ScheduleRun, Trigger
from db.schedule_specs import ScheduleSpec
from db.settings import Settings

log = logging.getLogger(__name__)
LATE_SECONDS = 60.0  # a fire time seen later than this was missed
COALESCE_SECONDS = 86_400.0
MOST_MISSED = 10
AT_ONCE = 20  # schedules, windows, runs per sweep
UNSYNCED = {"synchronize_session": False}
Sessions = sessionmaker[Session]


@dataclass(frozen=True, slots=True)
class Due:
    """What a sweep found to do."""

    now: float
    schedules: list[Schedule]
    windows: list[str]
    reopened: list[str]
    runs: list[ScheduleRun]


def sweep(sessions: Sessions, settings: Settings, *, clock: Callable[[Session], float] = schedules.now_of) -> int:
    """Fire what is due, pause what is past its window, resume what is in one again, start what can start; returns how
    many jobs were created."""
    with sessions.begin() as session:
        due = _due(session, clock(session))
    for schedule in due.schedules:
        with _surviving(schedule.id):
            fire(sessions, schedule, due.now)
    for run_id in due.windows:
        with sessions.begin() as session:
            _close_window(session, run_id, due.now)
    if due.schedules:  # the runs just written down need not wait for the next sweep
        with sessions.begin() as session:
            due = _due(session, due.now)
    for run_id in due.reopened:
        # The tenant has as many jobs running as it may: the next sweep tries again, until the window closes.
        with suppress(QuotaExceeded), sessions.begin() as session:
            _reopen_window(session, run_id)
    created = 0
    for run in due.runs:
        with _surviving(run.schedule_id):
            created += starting.start(sessions, settings, run, due.now)
    return created


@contextmanager
def _surviving(schedule_id: str) -> Iterator[None]:
    """What nobody foresaw about one schedule keeps neither the others from firing nor the sweep from its other work."""
    try:
        yield
    except SQLAlchemyError:
        raise
    except Exception:
        log.exception("schedule %s broke", schedule_id)


def _due(session: Session, now: float) -> Due:
    fires = select(Schedule).where(
        Schedule.next_at <= now, Schedule.paused.is_(False), Schedule.tenant.not_in(DISABLED)
    )
    windows = select(ScheduleRun.id).where(ScheduleRun.window_until <= now, ScheduleRun.status == RunStatus.STARTED)
    reopened = select(ScheduleRun.id).where(ScheduleRun.window_until > now, ScheduleRun.window_paused.is_(True))
    return Due(
        now,
        list(session.scalars(fires.order_by(Schedule.next_at).limit(AT_ONCE))),
        list(session.scalars(windows.limit(AT_ONCE))),
        # By chance, so that those there is no room for keep none from being tried.
        list(session.scalars(reopened.order_by(func.random()).limit(AT_ONCE))),
        _waiting(session, now),
    )


def _waiting(session: Session, now: float) -> list[ScheduleRun]:
    """Waiting runs to look at, in order of their fire times.

    A backfill has hundreds of dates whose turn is far away, and looking at them in vain must not take up every sweep.
    So the first run of each schedule and trigger comes before all others, one of each tenant before a second one of
    any, and what was not looked at for longest before what was.
    """
    waiting = ScheduleRun.status == RunStatus.WAITING
    first = (
        select(ScheduleRun.schedule_id, func.min(ScheduleRun.fire_at).label("fire_at"))
        .where(waiting, or_(ScheduleRun.trigger == Trigger.BACKFILL, ScheduleRun.try_at <= now))
        .group_by(ScheduleRun.schedule_id, ScheduleRun.trigger)
        .subquery()
    )
    longest = (ScheduleRun.try_at, ScheduleRun.fire_at)
    place = func.row_number().over(partition_by=Schedule.tenant, order_by=longest)
    due = select(ScheduleRun).join(Schedule, Schedule.id == ScheduleRun.schedule_id)
    due = due.where(waiting, ScheduleRun.try_at <= now, Schedule.tenant.not_in(DISABLED))
    is_first = and_(first.c.schedule_id == ScheduleRun.schedule_id, first.c.fire_at == ScheduleRun.fire_at)
    runs = list(session.scalars(due.join(first, is_first).order_by(place, *longest).limit(AT_ONCE)))
    others = due.where(ScheduleRun.id.not_in([run.id for run in runs])).order_by(*longest)
    runs += session.scalars(others.limit(AT_ONCE - len(runs)))
    return sorted(runs, key=lambda run: run.fire_at)


# -- fire times --------------------------------------------------------------------------------------------------------


def fire(sessions: Sessions, seen: Schedule, now: float) -> bool:
    """Take the fire times of a schedule up to now; False when another process has."""
    assert seen.next_at is not None
    spec = schedules.spec_of(seen)
    fires = spec.timetable.newest(seen.next_at, now, MOST_MISSED + 1)
    if spec.end_at is not None:
        fires = [fire for fire in fires if fire <= spec.end_at.timestamp()]
    with sessions.begin() as session:
        taken = session.execute(
            update(Schedule)
            .where(Schedule.id == seen.id, Schedule.next_at == seen.next_at, Schedule.paused.is_(False))
            .values(next_at=spec.first_after(now))
            .returning(Schedule.id),
            execution_options=UNSYNCED,
        )
        if taken.first() is None:
            return False
        _next_windows(session, seen.id, now if not fires else fires[-1], spec)
        for planned in plan_fires(spec, fires, now):
            _write_down(session, seen, planned)
    return True


@dataclass(frozen=True, slots=True)
class Planned:
    """A run to write down for a fire time."""

    fire: float
    trigger: Trigger = Trigger.SCHEDULE
    status: RunStatus = RunStatus.WAITING
    reason: str | None = None


def plan_fires(spec: ScheduleSpec, fires: list[float], now: float) -> list[Planned]:
    """What the misfire policy makes of fire times, given in order; only the newest few are given."""
    missed = [fire for fire in fires if fire < now - LATE_SECONDS]
    on_time = [Planned(fire) for fire in fires[len(missed) :]]
    if not missed:
        return on_time
    if spec.misfire == "all":
        dropped, kept = missed[:-MOST_MISSED], missed[-MOST_MISSED:]
        reason = f"missed, and every fire time before it: at most {MOST_MISSED} are made up for"
        skipped = [Planned(fire, status=RunStatus.SKIPPED, reason=reason) for fire in dropped[-1:]]
        # One after the other, whatever the overlap policy: they are late already.
        return [*skipped, *(Planned(fire, Trigger.BACKFILL) for fire in kept), *on_time]
    newest = fires[-1]
    if spec.misfire == "coalesce" and newest >= now - COALESCE_SECONDS:
        begin = spec.timetable.local(fires[0]).isoformat(timespec="minutes")
        reason = f"{starting.COALESCED} those missed since {begin} or before"
        return [Planned(newest, reason=reason if len(fires) > 1 else None)]
    reason = "missed: no process was there to fire it"
    return [Planned(missed[-1], status=RunStatus.SKIPPED, reason=reason), *on_time]


def _write_down(session: Session, schedule: Schedule, planned: Planned) -> None:
    """A backfill may have been there first."""
    known = select(ScheduleRun.id).where(ScheduleRun.schedule_id == schedule.id, ScheduleRun.fire_at == planned.fire)
    if session.scalar(known) is None:
        schedules.add_run(
            session, schedule, planned.fire, planned.trigger, status=planned.status, reason=planned.reason
        )


# -- windows -----------------------------------------------------------------------------------------------------------


def _close_window(session: Session, run_id: str, now: float) -> None:
    """The night is over: pause the run's job unless it has ended, or a person has paused it. Another process may have
    opened the next window by the time that the run is held."""
    run = _held(session, run_id)
    if run is None or run.window_until is None or run.window_until > now:
        return
    run.window_until = None
    job = None if run.job_id is None else jobs.lock(session, run.job_id)
    if job is not None and job.status in (JobStatus.VALIDATING, JobStatus.RUNNING):
        control.pause(session, job.id, job.tenant)
        run.window_paused = True


def _held(session: Session, run_id: str) -> ScheduleRun | None:
    """In the order of a fire and a start: schedule, run, and then the job."""
    schedule_id = session.scalar(select(ScheduleRun.schedule_id).where(ScheduleRun.id == run_id))
    if schedule_id is None or schedules.lock(session, schedule_id) is None:
        return None
    return session.get(ScheduleRun, run_id, with_for_update=True, populate_existing=True)


def _next_windows(session: Session, schedule_id: str, fire: float, spec: ScheduleSpec) -> None:
    """The next night: what the window paused has this night's too, and the sweep lets it go on."""
    if spec.window_seconds is None:
        return
    # Of one whose window ended while nobody swept, too: it was not paused then, and is not to be now.
    open_ = and_(ScheduleRun.status == RunStatus.STARTED, ScheduleRun.window_until.is_not(None))
    going_on = or_(open_, ScheduleRun.window_paused.is_(True))
    theirs = update(ScheduleRun).where(ScheduleRun.schedule_id == schedule_id, going_on)
    session.execute(theirs.values(window_until=fire + spec.window_seconds), execution_options=UNSYNCED)


def _reopen_window(session: Session, run_id: str) -> None:
    """Resume the run's job; one that a person has resumed meanwhile has no window any more. Raises QuotaExceeded."""
    run = _held(session, run_id)
    if run is None or not run.window_paused:
        return
    job = None if run.job_id is None else jobs.lock(session, run.job_id)
    if job is not None and job.status is JobStatus.PAUSED:
        control.resume(session, job.id, job.tenant)
    else:
        run.window_until = None
    run.window_paused = False
