"""From a run that waits to its job: whether it is its turn, whether its input is there, and the job, created once.

Reading the input's footers takes longer than a transaction should. So a process first takes the next look at the run
(by compare-and-set on `try_at`), reads, and then creates the job in the transaction that marks the run as started;
another process that looked meanwhile finds it so.
"""

from __future__ import annotations

import secrets

from sqlalchemy import select
from sqlalchemy.orm import Session, sessionmaker

from db import control, jobs, planning, schedules, tenants
from db.errors import DomainError, JobNotCancellable
from db.models import TERMINAL, Job
from db.schedule_models import RunStatus, Schedule, ScheduleRun, Trigger
from db.schedule_specs import ScheduleSpec
from db.settings import Settings

LOOK_SECONDS = 60.0  # a process that looks at a run and dies is followed by another after this
TURN_SECONDS = 5.0  # between two looks at a run that waits for its turn
INPUT_SECONDS = 15.0  # between two looks for an input
COALESCED = "stands for"  # how the reason of a run begins that stands for missed ones too
NIGHTLY = (Trigger.SCHEDULE, Trigger.MANUAL)


def start(sessions: sessionmaker[Session], settings: Settings, seen: ScheduleRun, now: float) -> bool:
    """Create the run's job if it is its turn and its input is there; True when this call created it.

    What keeps it is written into the run: `waiting` with a reason, `skipped`, or `failed` after the grace period.
    """
    with sessions.begin() as session:
        schedule = _take_look(session, seen, now)
        folders = None if schedule is None else tenants.folders(session, settings, schedule.tenant)
    if schedule is None or folders is None:
        return False
    spec = schedules.spec_of(schedule)
    job_id = f"job_{secrets.token_hex(12)}"
    try:
        job_spec = spec.job_at(seen.fire_at)
        plan = planning.plan(job_spec, job_id, folders, settings)
        with sessions.begin() as session:
            run = _held(session, seen)
            if run is None or not may_start(session, run, spec, now):
                return False
            job, _ = plan.create(session, job_spec, tenant=schedule.tenant, job_id=job_id, key=f"schedule:{run.id}")
            run.status, run.job_id = RunStatus.STARTED, job.id
            if run.reason is not None and not run.reason.startswith(COALESCED):
                run.reason = None  # what kept it does no longer
            if spec.window_seconds is not None and run.trigger is Trigger.SCHEDULE:
                run.window_until = run.fire_at + spec.window_seconds
    except (DomainError, OSError) as error:
        with sessions.begin() as session:
            run = _held(session, seen)
            if run is not None:
                _refuse(run, spec, error, now)
        return False
    return True


def _take_look(session: Session, seen: ScheduleRun, now: float) -> Schedule | None:
    """The schedule if this process is the one to look, and the run may start."""
    run = _held(session, seen)
    if run is None or run.try_at != seen.try_at:
        return None
    schedule = session.get_one(Schedule, run.schedule_id)
    run.try_at = now + LOOK_SECONDS
    return schedule if may_start(session, run, schedules.spec_of(schedule), now) else None


def _held(session: Session, seen: ScheduleRun) -> ScheduleRun | None:
    """The run as it is now if it still waits, its schedule held: turns are decided one at a time."""
    if schedules.lock(session, seen.schedule_id) is None:
        return None
    run = session.get(ScheduleRun, seen.id, populate_existing=True)
    return run if run is not None and run.status is RunStatus.WAITING else None


def _refuse(run: ScheduleRun, spec: ScheduleSpec, error: Exception, now: float) -> None:
    """The input is not there yet, or not what it should be: look again within the grace period, then give up.

    A backfill is of the past: what is not there will not come.
    """
    run.reason = jobs.storable(f"{getattr(error, 'code', 'disk')}: {error}", 4096)
    run.failing_since = run.failing_since if run.failing_since is not None else now
    if run.trigger is Trigger.BACKFILL or now >= run.failing_since + spec.grace_seconds:
        run.status = RunStatus.FAILED
    else:
        run.try_at = min(now + INPUT_SECONDS, run.failing_since + spec.grace_seconds)


# -- turns -------------------------------------------------------------------------------------------------------------


def may_start(session: Session, run: ScheduleRun, spec: ScheduleSpec, now: float) -> bool:
    """Whether nothing of the schedule stands in the run's way; otherwise the run says what, and may be skipped.

    Runs that compute only new rows build on each other and go one at a time, whatever triggered them.
    """
    alone = spec.job.only_new is not None
    active = _active(session, run)
    if run.trigger is Trigger.BACKFILL:
        before = _waiting_before(session, run, (Trigger.BACKFILL,))
        busy = active if alone else [other for other in active if other.trigger is Trigger.BACKFILL]
        if before or len(busy) >= run.parallel:
            return _wait(run, (before or busy)[0], spec, now)
        return True
    if run.trigger is Trigger.MANUAL:
        return _wait(run, active[0], spec, now) if alone and active else True
    others = [other for other in active if alone or other.trigger in NIGHTLY]
    others += _waiting_before(session, run, (Trigger.SCHEDULE,))
    if not others:
        return True
    if spec.overlap == "skip":
        run.status, run.reason = RunStatus.SKIPPED, f"overlap: the run of {_named(others[0], spec)} goes on"
        return False
    if spec.overlap == "queue":
        return _wait(run, others[0], spec, now)
    return _replace(session, run, others, spec, now)


def _wait(run: ScheduleRun, other: ScheduleRun, spec: ScheduleSpec, now: float) -> bool:
    run.reason, run.try_at = f"waits for the run of {_named(other, spec)}", now + TURN_SECONDS
    return False


def _replace(session: Session, run: ScheduleRun, others: list[ScheduleRun], spec: ScheduleSpec, now: float) -> bool:
    """cancel_previous. A job that is past being cancelled ends by itself in moments; a backfill is not cancelled."""
    tenant = session.get_one(Schedule, run.schedule_id).tenant
    left = [other for other in others if other.trigger is Trigger.BACKFILL]
    for other in others:
        if other in left:
            continue
        if other.job_id is None:
            other.status = RunStatus.SKIPPED
        else:
            try:
                left += [] if control.cancel(session, other.job_id, tenant).status.terminal else [other]
            except JobNotCancellable:
                left.append(other)
        other.reason = f"overlap: replaced by the run of {_named(run, spec)}"
    if left and spec.job.only_new is not None:
        return _wait(run, left[0], spec, now)
    return True


def _active(session: Session, run: ScheduleRun) -> list[ScheduleRun]:
    """The schedule's runs whose job goes on, oldest first."""
    query = (
        select(ScheduleRun)
        .join(Job, Job.id == ScheduleRun.job_id)
        .where(ScheduleRun.schedule_id == run.schedule_id, Job.status.not_in(TERMINAL), ScheduleRun.id != run.id)
        .order_by(ScheduleRun.fire_at)
    )
    return list(session.scalars(query))


def _waiting_before(session: Session, run: ScheduleRun, triggers: tuple[Trigger, ...]) -> list[ScheduleRun]:
    query = (
        select(ScheduleRun)
        .where(
            ScheduleRun.schedule_id == run.schedule_id,
            ScheduleRun.status == RunStatus.WAITING,
            ScheduleRun.trigger.in_(triggers),
            ScheduleRun.fire_at < run.fire_at,
        )
        .order_by(ScheduleRun.fire_at)
        .limit(1)
    )
    return list(session.scalars(query))


def _named(run: ScheduleRun, spec: ScheduleSpec) -> str:
    return spec.timetable.local(run.fire_at).isoformat(timespec="minutes")
