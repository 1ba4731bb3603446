"""Routes of jobs: submit, list, read, and what can be done to one: pause, resume, cancel, retry."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import Annotated

from fastapi import APIRouter, Header, Query, Response
from sqlalchemy import select
from sqlalchemy.orm import Session

from api import plans, submission
from api.auth import Caller
from api.deps import CallerDep, Services, ServicesDep, SubmissionDep, SubmitterDep
from api.errors import naming
from api.plan_views import SAMPLE_ROWS, PlanView
from api.schemas import IdempotencyKey, JobPage, JobRequest, JobView
from db import audit, control, dead_letters, ends, jobs, tenants, uris, windows
from db.errors import InvalidJob, WrongState
from db.models import Job, JobStatus
from db.progress import Progress, progress
from db.session import db_now
from db.specs import JobSpec

router = APIRouter(prefix="/v1/jobs", tags=["jobs"])


@router.post("", status_code=202)
def submit(
    request: JobRequest,
    response: Response,
    services: ServicesDep,
    caller: SubmissionDep,
    idempotency_key: Annotated[IdempotencyKey | None, Header()] = None,
    dry_run: Annotated[bool, Query(description="Make no job, but a plan of what it will take: a PlanView.")] = False,
    sample_rows: Annotated[
        int, Query(ge=8, le=1024, description="With `dry_run`: rows that are computed for the plan.")
    ] = SAMPLE_ROWS,
) -> JobView | PlanView:
    """Check a job, store it, and answer before any row runs. The same key with the same job gives the first one."""
    key = request.idempotency_key or idempotency_key
    if idempotency_key not in (None, key):
        raise InvalidJob("idempotency_key", "the header and the field differ")
    if request.only_new is not None:
        raise InvalidJob("only_new", "only a schedule's runs have earlier ones; see POST /v1/schedules")
    spec = submission.specify(request, services.settings)
    if dry_run:
        if key is not None:
            raise InvalidJob("idempotency_key", "a dry run makes no job; leave the key out")
        plan = plans.make(spec, sample_rows, services, caller)
        response.headers["Location"] = f"/v1/plans/{plan.id}"
        return plan
    view = create(spec, key, services, caller)
    response.headers["Location"] = f"/v1/jobs/{view.id}"
    return view


def create(spec: JobSpec, key: str | None, services: Services, caller: Caller, retry_of: str | None = None) -> JobView:
    with services.sessions.begin() as session:
        folders = tenants.folders(session, services.settings, caller.tenant)
        view = _earlier(services, session, caller.tenant, spec, key)
    if view is None:
        # Reading footers may take a while, so no transaction is open meanwhile.
        job_id = f"job_{secrets.token_hex(12)}"
        plan = submission.plan(spec, job_id, folders, services.settings)
        with services.sessions.begin() as session:
            job, created = plan.create(session, spec, tenant=caller.tenant, job_id=job_id, key=key, retry_of=retry_of)
            if created:
                action = "job.submit" if retry_of is None else "job.retry"
                audit.record(session, caller.actor, action, job.id, rows=job.num_rows)
                view = JobView.of(job, Progress(), job.created_at, None)
            else:
                view = _view(services, session, job)
        services.sweeper.nudge()
    return view


@router.get("")
def listing(
    services: ServicesDep,
    caller: CallerDep,
    limit: Annotated[int, Query(ge=1, le=200, description="Most entries of a page.")] = 50,
    after: Annotated[str | None, Query(description="The `next` of the page before.")] = None,
    status: Annotated[JobStatus | None, Query(description="Jobs of this status alone.")] = None,
) -> JobPage:
    """Jobs, newest first, a page at a time."""
    with services.sessions.begin() as session:
        with naming("after"):
            found = jobs.listing(session, caller.tenant, limit=limit + 1, after=after, status=status)
        page = found[:limit]
        counts = progress(session, [job.id for job in page])
        now = _now(session)
        found_ends = ends.ends(session, page, counts, now, services.settings.lease_seconds)
        views = [JobView.of(job, counts[job.id], now, found_ends.get(job.id)) for job in page]
    return JobPage(jobs=views, next=page[-1].id if len(found) > limit else None)


@router.get("/{job_id}")
def read(job_id: str, services: ServicesDep, caller: CallerDep) -> JobView:
    """A job with live counts, rates and the time it will still take."""
    with services.sessions.begin() as session:
        return _view(services, session, jobs.get(session, job_id, caller.tenant))


@router.post("/{job_id}/cancel", status_code=202)
def cancel(job_id: str, services: ServicesDep, caller: SubmitterDep) -> JobView:
    """Stop a job. Rows that are finished stay; a job that is ending already answers 409."""
    return _change(services, caller, job_id, control.cancel)


@router.post("/{job_id}/pause", status_code=202)
def pause(job_id: str, services: ServicesDep, caller: SubmitterDep) -> JobView:
    """Begin nothing more of a job. Rows in the engine are given up within seconds, finished ones are kept."""
    return _change(services, caller, job_id, control.pause)


@router.post("/{job_id}/resume", status_code=202)
def resume(job_id: str, services: ServicesDep, caller: SubmitterDep) -> JobView:
    """Go on with a paused job where it was. 429 while its tenant has as many jobs running as it may."""
    return _change(services, caller, job_id, control.resume)


@router.post("/{job_id}/retry", status_code=202)
def retry(
    job_id: str,
    response: Response,
    services: ServicesDep,
    caller: SubmissionDep,
    idempotency_key: Annotated[IdempotencyKey | None, Header()] = None,
) -> JobView:
    """A new job of the same specification over the failed rows of one that has ended, under a new output folder.

    Without a key, a second call gives the first call's job again. 409 when the job goes on, or has no failed row.
    """
    view = try_again(job_id, idempotency_key, services, caller)
    response.headers["Location"] = f"/v1/jobs/{view.id}"
    return view


def try_again(job_id: str, key: str | None, services: Services, caller: Caller) -> JobView:
    with services.sessions.begin() as session:
        job = jobs.get(session, job_id, caller.tenant)
        roots = tenants.folders(session, services.settings, caller.tenant).roots
    if not job.status.terminal:
        raise WrongState(job_id, job.status, "retried")
    source = dead_letters.folder_of(job_id, uris.locate(job.output_uri, roots))
    others = {"output": None, "max_rows": None, "only_new": None}
    spec = JobSpec.model_validate({**job.spec, "input": str(source), **others})
    return create(spec, key or f"retry:{job_id}", services, caller, retry_of=job_id)


def _change(services: Services, caller: Caller, job_id: str, change: Callable[[Session, str, str], Job]) -> JobView:
    with services.sessions.begin() as session:
        view = _view(services, session, change(session, job_id, caller.tenant))
        audit.record(session, caller.actor, f"job.{change.__name__}", job_id)
    services.sweeper.nudge()
    return view


def _earlier(services: Services, session: Session, tenant: str, spec: JobSpec, key: str | None) -> JobView | None:
    """The job of an earlier request with this key, looked for before the checks: its output folder is in use now."""
    job = jobs.by_key(session, tenant, key)
    return None if job is None else _view(services, session, jobs.same(job, spec))


def _view(services: Services, session: Session, job: Job) -> JobView:
    measured = windows.whole(windows.of(session, job))
    counts, now = progress(session, [job.id]), _now(session)
    end = ends.ends(session, [job], counts, now, services.settings.lease_seconds).get(job.id)
    return JobView.of(job, counts[job.id], now, end, measured)


def _now(session: Session) -> float:
    now = session.scalar(select(db_now()))
    assert now is not None
    return float(now)
