"""Routes of schedules: create, list, show, pause, resume, run now, backfill, history, delete."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated

from fastapi import APIRouter, Header, Query, Response
from sqlalchemy.orm import Session

from api import submission
from api.auth import Caller
from api.deps import CallerDep, Services, ServicesDep, SubmissionDep, SubmitterDep
from api.errors import FieldError, naming
from api.schedule_schemas import (
    BackfillRequest,
    BackfillView,
    RunPage,
    RunView,
    ScheduleList,
    ScheduleRequest,
    ScheduleView,
)
from api.schemas import IdempotencyKey
from db import audit, planning, schedule_specs, schedules, tenants, uris
from db.errors import DatasetRefused, InvalidJob
from db.schedule_models import Schedule
from db.schedule_specs import ScheduleSpec
from db.tenants import Folders

router = APIRouter(prefix="/v1/schedules", tags=["schedules"])
MISSING = "does not exist"  # of db.uris: an input that will come


@router.post("", status_code=201)
def create(request: ScheduleRequest, response: Response, services: ServicesDep, caller: SubmissionDep) -> ScheduleView:
    """Check a schedule and store it. Its job is checked as far as it can be: the input may not be there yet."""
    view = create_schedule(request, services, caller)
    response.headers["Location"] = f"/v1/schedules/{view.name}"
    return view


def create_schedule(request: ScheduleRequest, services: Services, caller: Caller) -> ScheduleView:
    if request.job.idempotency_key is not None:
        raise InvalidJob("job.idempotency_key", "each run makes its own; leave this field out")
    values = request.model_dump(exclude={"name", "job"})
    with _in_job():
        values["job"] = submission.specify(request.job, services.settings)
    spec = ScheduleSpec.model_validate(values)
    with services.sessions.begin() as session:
        now = schedules.now_of(session)
        folders = tenants.folders(session, services.settings, caller.tenant)
    schedule_specs.check(spec, now)
    _check_job(spec, now, folders, services)
    with services.sessions.begin() as session:
        schedule, created = schedules.create(session, caller.tenant, request.name, spec)
        if created:
            audit.record(session, caller.actor, "schedule.create", schedule.id, name=schedule.name)
        view = _view(session, schedule)
    services.sweeper.nudge()
    return view


@contextmanager
def _in_job() -> Iterator[None]:
    """What is wrong with a field of the job is wrong with that field below `job`."""
    try:
        yield
    except FieldError as error:
        raise FieldError(f"job.{error.field}", error.error) from error
    except InvalidJob as error:
        raise FieldError(f"job.{error.field}", error) from error


def _check_job(spec: ScheduleSpec, now: float, folders: Folders, services: Services) -> None:
    """The next run's job, as if it began now. That its input does not exist yet is as it should be."""
    fire = spec.first_after(now)
    assert fire is not None, "an expression that never fires was refused before"
    try:
        with _in_job():
            planning.plan(spec.job_at(fire), "job_of_a_schedule", folders, services.settings, naming)
    except FieldError as error:
        refused = error.error
        if not (isinstance(refused, DatasetRefused) and refused.reason == MISSING):
            raise
        output = spec.job_at(fire).output
        if output is not None:
            with _in_job(), naming("output"):
                uris.resolve_output(output, folders.roots)


@router.get("")
def listing(services: ServicesDep, caller: CallerDep) -> ScheduleList:
    """Every schedule, by name."""
    with services.sessions.begin() as session:
        found = schedules.listing(session, caller.tenant)
        counts = schedules.counts(session, [schedule.id for schedule in found])
    return ScheduleList(schedules=[ScheduleView.of(schedule, counts[schedule.id]) for schedule in found])


@router.get("/{name}")
def read(name: str, services: ServicesDep, caller: CallerDep) -> ScheduleView:
    """A schedule, by its name or id."""
    with services.sessions.begin() as session:
        return _view(session, schedules.get(session, caller.tenant, name))


@router.delete("/{name}", status_code=204)
def delete(name: str, services: ServicesDep, caller: SubmitterDep) -> None:
    """The schedule and its history go. Its jobs stay, and those that run go on."""
    with services.sessions.begin() as session:
        schedule = schedules.get(session, caller.tenant, name)
        schedules.delete(session, caller.tenant, schedule.id)
        audit.record(session, caller.actor, "schedule.delete", schedule.id, name=schedule.name)


@router.post("/{name}/pause")
def pause(name: str, services: ServicesDep, caller: SubmitterDep) -> ScheduleView:
    """It fires no more until it is resumed; runs that were fired go on."""
    return _change(services, caller, name, schedules.pause)


@router.post("/{name}/resume")
def resume(name: str, services: ServicesDep, caller: SubmitterDep) -> ScheduleView:
    """It fires again, from the next fire time on."""
    return _change(services, caller, name, schedules.resume)


@router.post("/{name}/run", status_code=202)
def run_now(
    name: str,
    services: ServicesDep,
    caller: SubmissionDep,
    idempotency_key: Annotated[IdempotencyKey | None, Header()] = None,
) -> RunView:
    """A run now, whose logical date is this moment's; the same key gives the same run. No overlap policy applies."""
    with services.sessions.begin() as session:
        schedule = schedules.get(session, caller.tenant, name)
        run, created = schedules.run_now(session, caller.tenant, schedule.id, key=idempotency_key)
        if created:
            audit.record(session, caller.actor, "schedule.run", schedule.id, name=schedule.name, run=run.id)
        view = RunView.of(run, None, schedules.spec_of(schedule))
    services.sweeper.nudge()
    return view


@router.post("/{name}/backfill", status_code=202)
def backfill(name: str, request: BackfillRequest, services: ServicesDep, caller: SubmissionDep) -> BackfillView:
    """A run for every fire time on these dates that has none yet, or whose run never became a job; oldest first."""
    with services.sessions.begin() as session:
        schedule = schedules.get(session, caller.tenant, name)
        done = schedules.backfill(
            session, caller.tenant, schedule.id, request.first, request.last, parallel=request.parallel
        )
        days = {"first": str(request.first), "last": str(request.last), "runs": len(done.runs)}
        audit.record(session, caller.actor, "schedule.backfill", schedule.id, name=schedule.name, **days)
        spec = schedules.spec_of(schedule)
        view = BackfillView(runs=[RunView.of(run, None, spec) for run in done.runs], known=done.num_known)
    services.sweeper.nudge()
    return view


@router.get("/{name}/runs")
def history(
    name: str,
    services: ServicesDep,
    caller: CallerDep,
    limit: Annotated[int, Query(ge=1, le=200, description="Most entries of a page.")] = 50,
    before: Annotated[float | None, Query(description="The `next` of the page before.")] = None,
) -> RunPage:
    """The schedule's runs with their counts, newest first, a page at a time."""
    with services.sessions.begin() as session:
        schedule = schedules.get(session, caller.tenant, name)
        found = schedules.history(session, schedule, limit=limit + 1, before=before)
    spec, page = schedules.spec_of(schedule), found[:limit]
    views = [RunView.of(run, job, spec) for run, job in page]
    return RunPage(runs=views, next=page[-1][0].fire_at if len(found) > limit else None)


def _change(
    services: Services, caller: Caller, name: str, change: Callable[[Session, str, str], Schedule]
) -> ScheduleView:
    with services.sessions.begin() as session:
        schedule = change(session, caller.tenant, name)
        audit.record(session, caller.actor, f"schedule.{change.__name__}", schedule.id, name=schedule.name)
        view = _view(session, schedule)
    services.sweeper.nudge()
    return view


def _view(session: Session, schedule: Schedule) -> ScheduleView:
    return ScheduleView.of(schedule, schedules.counts(session, [schedule.id])[schedule.id])
