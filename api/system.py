"""Routes about the service itself: health, readiness, metrics, models and workers."""

from __future__ import annotations

from importlib.metadata import version

from fastapi import APIRouter, Response
from sqlalchemy import select, text
from sqlalchemy.exc import SQLAlchemyError

from api.deps import CallerDep, OperatorDep, Services, ServicesDep
from api.metrics import CONTENT_TYPE
from api.queue import QueueError
from api.system_views import Health, ModelList, ModelView, OpenAIModel, WorkerList, WorkerView
from db import model_files
from db.redaction import shown
from db.session import db_now
from db.workers import workers as seen_workers

router = APIRouter(tags=["system"])


@router.get("/healthz")
def healthz() -> Health:
    """The process answers."""
    return Health(status="ok", version=version("nightmill"))


@router.get("/readyz")
def readyz(services: ServicesDep, response: Response) -> Health:
    """Database and broker answer too; 503 names the one that does not."""
    checks = {"database": _database(services), "broker": _broker(services)}
    ready = set(checks.values()) == {"ok"}
    response.status_code = 200 if ready else 503
    return Health(status="ok" if ready else "unavailable", version=version("nightmill"), checks=checks)


@router.get("/metrics", include_in_schema=False)
def metrics(services: ServicesDep, caller: OperatorDep) -> Response:
    """Prometheus text."""
    with services.sessions.begin() as session:
        return Response(services.metrics.render(session), media_type=CONTENT_TYPE)


@router.get("/v1/models")
def models(services: ServicesDep, caller: CallerDep) -> ModelList:
    """Models known by name, and those found on the API's machine."""
    sizes = {model.name: model.num_bytes for model in model_files.installed(services.settings)}
    known = [
        ModelView(name=name, title=entry.title, installed=name in sizes, bytes=sizes.get(name))
        for name, entry in model_files.CATALOG.items()
    ]
    others = [
        ModelView(name=name, title=name, installed=True, bytes=size)
        for name, size in sizes.items()
        if name not in model_files.CATALOG
    ]
    default, aliases = services.settings.model, services.settings.openai_models
    names = dict.fromkeys([default, *(model.name for model in known + others), *aliases])
    data = [OpenAIModel(id=name) for name in names]
    return ModelList(default=default, models=known + others, data=data)


@router.get("/v1/workers")
def workers(services: ServicesDep, caller: OperatorDep) -> WorkerList:
    """Worker processes, as they last reported themselves."""
    with services.sessions.begin() as session:
        now = session.scalar(select(db_now()))
        assert now is not None
        return WorkerList(workers=[WorkerView.of(worker, float(now)) for worker in seen_workers(session)])


def _database(services: Services) -> str:
    try:
        with services.database.connect() as connection:
            connection.execute(text("SELECT 1"))
    except SQLAlchemyError as error:
        return shown(str(error).splitlines()[0])
    return "ok"


def _broker(services: Services) -> str:
    try:
        services.queue.check()
    except QueueError as error:
        return shown(str(error)) or "no answer"
    return "ok"
