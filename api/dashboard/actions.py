"""The forms: sign in and out, submit and plan, and what can be done to a job or a schedule."""

from __future__ import annotations

from collections.abc import Callable

from fastapi import APIRouter, FastAPI, Request
from fastapi.responses import HTMLResponse, RedirectResponse
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import FormData, UploadFile

from api import jobs as job_routes
from api import plans, submission, uploads
from api import schedules as schedule_routes
from api.auth import Caller, Unauthenticated, authenticate
from api.dashboard import forms, pages, render
from api.dashboard.answers import Refusals, refusable, to, words
from api.dashboard.session import (
    FORM_FIELD,
    KEY_COOKIE,
    ForeignForm,
    SignInNeeded,
    Viewer,
    ViewerDep,
    check_form,
    check_origin,
    keep,
)
from api.deps import Services, ServicesDep, count_submission
from api.plan_views import SAMPLE_ROWS
from api.schedule_schemas import BackfillRequest, ScheduleRequest
from api.schemas import JobRequest
from db import dry_runs
from db.specs import JobSpec

router = APIRouter(include_in_schema=False)
JOB_ACTIONS = {"pause": job_routes.pause, "resume": job_routes.resume, "cancel": job_routes.cancel}
SCHEDULE_ACTIONS: dict[str, Callable[[str, Services, Caller], object]] = {
    "pause": schedule_routes.pause,
    "resume": schedule_routes.resume,
    "run": schedule_routes.run_now,
}


def install(app: FastAPI) -> None:
    for each in (router, pages.router):
        app.include_router(each)
    app.add_exception_handler(SignInNeeded, lambda request, error: to("/sign-in"))
    app.add_exception_handler(ForeignForm, _foreign)


def _foreign(request: Request, error: Exception) -> HTMLResponse:
    title = "The form is not of this page"
    return render.page(request, None, "refused.html", status=403, title=title, message=str(error))


async def _form(request: Request, viewer: Viewer) -> FormData:
    """The form's fields, of a viewer who may change things. Raises ForeignForm and Forbidden.

    Its token is one of the fields; what can be known without them is looked at before a file is taken in.
    """
    check_origin(request)
    viewer.need_submit()
    form = await request.form(max_files=1, max_fields=50)
    try:
        check_form(request, form.get(FORM_FIELD))
    except ForeignForm:
        await form.close()
        raise
    return form


def texts(form: FormData) -> dict[str, str]:
    return {name: value.strip() for name, value in form.items() if isinstance(value, str)}


# -- sign in -----------------------------------------------------------------------------------------------------------


@router.get("/sign-in")
def sign_in_page(request: Request) -> HTMLResponse:
    return render.page(request, None, "sign_in.html", error="")


@router.post("/sign-in", response_model=None)
async def sign_in(request: Request, services: ServicesDep) -> HTMLResponse | RedirectResponse:
    check_origin(request)
    key = texts(await request.form(max_files=0, max_fields=5)).get("key", "")
    try:
        await run_in_threadpool(
            authenticate,
            services.settings,
            services.sessions,
            f"Bearer {key}",
            "" if request.client is None else request.client.host,
        )
    except Unauthenticated:
        error = "This key is not known, or revoked, or expired."
        return render.page(request, None, "sign_in.html", status=401, error=error)
    response = to("/")
    keep(request, response, KEY_COOKIE, key)
    return response


@router.post("/sign-out")
async def sign_out(request: Request, viewer: ViewerDep) -> RedirectResponse:
    check_form(request, (await request.form(max_files=0, max_fields=5)).get(FORM_FIELD))
    response = to("/sign-in")
    response.delete_cookie(KEY_COOKIE, path="/")
    return response


# -- jobs --------------------------------------------------------------------------------------------------------------


@router.get("/submit")
def submit_page(request: Request, viewer: ViewerDep) -> HTMLResponse:
    return render.page(request, viewer, "submit.html", error="", form={})


@router.post("/submit", response_model=None)
async def submit(request: Request, services: ServicesDep, viewer: ViewerDep) -> HTMLResponse | RedirectResponse:
    form = await _form(request, viewer)
    file = form.get("file")
    try:
        upload = file if isinstance(file, UploadFile) and file.filename else None
        place = await run_in_threadpool(_submit, services, viewer, texts(form), upload)
    except Refusals as error:
        return render.page(request, viewer, "submit.html", status=422, error=words(error), form=texts(form))
    finally:
        await form.close()
    return to(place)


def _submit(services: Services, viewer: Viewer, form: dict[str, str], file: UploadFile | None) -> str:
    """The page of the job, or of the plan that was asked for instead."""
    count_submission(viewer.caller, services)
    job = forms.job_of(form)
    if file is not None:
        job["input"] = _upload(services, viewer, file)
    else:
        job["input"] = form.get("input", "")
    spec = submission.specify(JobRequest.model_validate(job), services.settings)
    if "plan" in form:
        return f"/plans/{plans.make(spec, SAMPLE_ROWS, services, viewer.caller).id}"
    return f"/jobs/{job_routes.create(spec, None, services, viewer.caller).id}"


def _upload(services: Services, viewer: Viewer, file: UploadFile) -> str:
    name = file.filename or "upload.parquet"
    return uploads.store(services, viewer.caller, name, uploads.chunks(file.file)).uri


@router.post("/plans/{plan_id}/submit", response_model=None)
async def submit_planned(
    plan_id: str, request: Request, services: ServicesDep, viewer: ViewerDep
) -> HTMLResponse | RedirectResponse:
    """The job that was planned, as it was."""
    await _form(request, viewer)

    def create() -> str:
        count_submission(viewer.caller, services)
        with services.sessions.begin() as session:
            spec = JobSpec.model_validate(dry_runs.get(session, plan_id, viewer.caller.tenant).spec)
        return job_routes.create(spec, None, services, viewer.caller).id

    return await refusable(request, viewer, create, lambda job_id: f"/jobs/{job_id}")


@router.post("/jobs/{job_id}/{action}", response_model=None)
async def act(
    job_id: str, action: str, request: Request, services: ServicesDep, viewer: ViewerDep
) -> HTMLResponse | RedirectResponse:
    await _form(request, viewer)

    def change() -> str:
        if action == "retry":
            count_submission(viewer.caller, services)
            return job_routes.try_again(job_id, None, services, viewer.caller).id
        return JOB_ACTIONS[action](job_id, services, viewer.caller).id

    return await refusable(request, viewer, change, lambda changed: f"/jobs/{changed}")


# -- schedules ---------------------------------------------------------------------------------------------------------


@router.get("/new-schedule")
def new_schedule(request: Request, viewer: ViewerDep) -> HTMLResponse:
    form = {"timezone": "UTC", "cron": "30 2 * * *"}
    return render.page(request, viewer, "new_schedule.html", error="", form=form)


@router.post("/new-schedule", response_model=None)
async def create_schedule(
    request: Request, services: ServicesDep, viewer: ViewerDep
) -> HTMLResponse | RedirectResponse:
    form = texts(await _form(request, viewer))

    def create() -> str:
        count_submission(viewer.caller, services)
        wanted = ScheduleRequest.model_validate(forms.schedule_of(form))
        return schedule_routes.create_schedule(wanted, services, viewer.caller).name

    try:
        return to(f"/schedules/{await run_in_threadpool(create)}")
    except Refusals as error:
        return render.page(request, viewer, "new_schedule.html", status=422, error=words(error), form=form)


@router.post("/schedules/{name}/{action}", response_model=None)
async def act_on_schedule(
    name: str, action: str, request: Request, services: ServicesDep, viewer: ViewerDep
) -> HTMLResponse | RedirectResponse:
    form = texts(await _form(request, viewer))

    def change() -> str:
        if action == "delete":
            schedule_routes.delete(name, services, viewer.caller)
            return "/schedules"
        if action in ("run", "backfill"):
            count_submission(viewer.caller, services)
        if action == "backfill":
            wanted = BackfillRequest.model_validate({"first": form.get("first"), "last": form.get("last")})
            schedule_routes.backfill(name, wanted, services, viewer.caller)
        else:
            SCHEDULE_ACTIONS[action](name, services, viewer.caller)
        return f"/schedules/{name}"

    return await refusable(request, viewer, change, str)
