"""The pages that only show: jobs, a job, schedules, a schedule, workers."""

from __future__ import annotations

import calendar
from dataclasses import dataclass
from datetime import date, datetime
from pathlib import Path
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import FileResponse, HTMLResponse
from sqlalchemy import select
from sqlalchemy.orm import Session

from api import jobs as job_routes
from api import plans as plan_routes
from api import results, system
from api import schedules as schedule_routes
from api.dashboard import render
from api.dashboard.rows import NOTHING, look
from api.dashboard.session import Viewer, ViewerDep
from api.deps import Services, ServicesDep
from api.errors import ResultNotFound
from api.plan_views import LIMITS
from api.schedule_schemas import RunView, ScheduleView
from db import audit, jobs, samples, windows
from db.errors import DatasetRefused
from db.histograms import MEASURES
from db.models import Job, Shard, ShardStatus
from db.stores import Place, S3Path

router = APIRouter(include_in_schema=False)
PER_PAGE = 25
MOST_SHARDS = 500  # whose counters are added up
MONTHS = 2
TYPES = {".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}


@router.get("/static/{name}")
def static(name: str) -> FileResponse:
    path = render.FOLDER / "static" / Path(name).name
    if path.suffix not in TYPES or not path.is_file():
        raise ResultNotFound("static", name)
    headers = {"Cache-Control": "max-age=3600", "X-Content-Type-Options": "nosniff"}
    return FileResponse(path, media_type=TYPES[path.suffix], headers=headers)


@router.get("/")
def job_list(request: Request, services: ServicesDep, viewer: ViewerDep, after: str | None = None) -> HTMLResponse:
    found = job_routes.listing(services, viewer.caller, PER_PAGE, after)
    return render.page(request, viewer, "jobs.html", jobs=found.jobs, next=found.next, after=after)


@router.get("/jobs/{job_id}")
def job_page(job_id: str, request: Request, services: ServicesDep, viewer: ViewerDep) -> HTMLResponse:
    view = job_routes.read(job_id, services, viewer.caller)
    with services.sessions.begin() as session:
        job = jobs.get(session, job_id, viewer.caller.tenant)
        points = samples.points(session, job)
        engine = _engine(session, job)
        spans = windows.of(session, job)
        output = _output(session, services, job)
    # The parts that a live page asks for again have no rows in them.
    seen = NOTHING if "HX-Request" in request.headers else look(job, output)
    if seen.pairs or seen.groups:
        with services.sessions.begin() as session:
            audit.record(session, viewer.caller.actor, "result.view", job_id)
    columns = {name: [getattr(point, name) for point in points] for name in ("at", "rows", "tokens")}
    response = render.page(
        request,
        viewer,
        "job.html",
        job=view,
        points=columns,
        table=[(datetime.fromtimestamp(point.at).astimezone(), point.rows, point.tokens) for point in points[-50:]],
        engine=engine,
        measures=MEASURES,
        spans=[(datetime.fromtimestamp(span.ended).astimezone(), span.percentiles) for span in spans],
        look=seen,
        bucket=isinstance(output, S3Path) and not view.status.terminal,
        most=max((count for _, count in seen.lengths), default=1),
    )
    if view.status.terminal and "HX-Request" in request.headers:
        response.headers["HX-Refresh"] = "true"  # a page that was live shows the whole result once
    return response


@router.get("/plans/{plan_id}")
def plan_page(plan_id: str, request: Request, services: ServicesDep, viewer: ViewerDep) -> HTMLResponse:
    found = plan_routes.read_plan(plan_id, services, viewer.caller)
    return render.page(request, viewer, "plan.html", plan=found, limits=LIMITS)


def _output(session: Session, services: Services, job: Job) -> Place | None:
    """None: the roots were changed, and the job's output lies in none of them any more."""
    try:
        return results.output_of(session, services, job)
    except DatasetRefused:
        return None


def _engine(session: Session, job: Job) -> dict[str, float | None]:
    """What the engine did for the job's finished shards; of a large job, for the newest of them."""
    query = select(Shard.counters).where(Shard.job_id == job.id, Shard.status == ShardStatus.DONE)
    total: dict[str, float] = {}
    for counters in session.scalars(query.order_by(Shard.index.desc()).limit(MOST_SHARDS)):
        for name, value in (counters or {}).items():
            total[name] = total.get(name, 0) + value
    proposed, accepted = (
        sum(value for name, value in total.items() if name.startswith("drafts.") and name.endswith(f".{key}"))
        for key in ("proposed", "accepted")
    )
    return {
        "cache": _ratio(total.get("cached_tokens", 0), total.get("prompt_tokens", 0)),
        "acceptance": _ratio(accepted, proposed),
        "occupancy": _ratio(total.get("computed_tokens", 0), total.get("steps", 0)),
        "reused": total.get("rows_reused"),
    }


def _ratio(part: float, whole: float) -> float | None:
    return part / whole if whole else None


@router.get("/schedules")
def schedule_list(request: Request, services: ServicesDep, viewer: ViewerDep) -> HTMLResponse:
    found = schedule_routes.listing(services, viewer.caller).schedules
    return render.page(request, viewer, "schedules.html", schedules=found, local=local)


def local(schedule: ScheduleView, moment: datetime | None) -> str:
    """In the schedule's zone."""
    if moment is None:
        return "never"
    return schedule.spec.timetable.local(moment.timestamp()).strftime("%Y-%m-%d %H:%M")


def schedule_page(
    request: Request, services: Services, viewer: Viewer, name: str, *, error: str = "", status: int = 200
) -> HTMLResponse:
    schedule = schedule_routes.read(name, services, viewer.caller)
    runs = schedule_routes.history(name, services, viewer.caller, 200).runs
    today = schedule.spec.timetable.local(datetime.now().timestamp()).date()
    values: dict[str, Any] = {"runs": runs[:50], "calendar": months(runs, today), "local": local}
    base = f"/schedules/{schedule.name}"
    return render.page(
        request, viewer, "schedule.html", status=status, schedule=schedule, base=base, error=error, **values
    )


@router.get("/schedules/{name}")
def one_schedule(name: str, request: Request, services: ServicesDep, viewer: ViewerDep) -> HTMLResponse:
    return schedule_page(request, services, viewer, name)


@router.get("/workers")
def workers(request: Request, services: ServicesDep, viewer: ViewerDep) -> HTMLResponse:
    if not viewer.caller.operator:
        message = "Workers serve every tenant; they are shown to keys of the tenant 'default'."
        return render.page(request, viewer, "refused.html", status=403, title="Workers", message=message)
    found = system.workers(services, viewer.caller).workers
    return render.page(request, viewer, "workers.html", workers=found)


# -- calendar ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Day:
    number: int
    date: str
    run: RunView | None  # the newest of the day


@dataclass(frozen=True, slots=True)
class Month:
    title: str
    weeks: list[list[Day | None]]


def months(runs: list[RunView], today: date) -> list[Month]:
    """This month and those before it, newest first, each as weeks from Monday; None: a day of another month."""
    newest: dict[str, RunView] = {}
    for run in runs:  # newest first
        newest.setdefault(run.logical_date, run)
    made = []
    for back in range(MONTHS):
        year, month = divmod(today.year * 12 + today.month - 1 - back, 12)
        first = date(year, month + 1, 1)
        weeks = [
            [_day(first.replace(day=number), newest) if number else None for number in week]
            for week in calendar.Calendar().monthdayscalendar(first.year, first.month)
        ]
        made.append(Month(f"{first:%B %Y}", weeks))
    return made


def _day(day: date, newest: dict[str, RunView]) -> Day:
    return Day(day.day, day.isoformat(), newest.get(day.isoformat()))
