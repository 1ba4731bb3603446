"""The FastAPI application. `create_app(settings)` makes it; `serve` runs it on a socket."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.metadata import version
from typing import TYPE_CHECKING

from fastapi import FastAPI

from api import access, errors, jobs, plans, results, schedules, system, uploads, webhooks
from api.auth import check_exposure
from api.dashboard import actions as dashboard
from api.deps import Services
from api.metrics import Metrics
from api.middleware import BodyLimit, OwnNames, OwnPages, Timing
from api.openai.keeper import Keeper
from api.openai.routes import ROUTERS as OPENAI_ROUTERS
from api.postman import Postman
from api.queue import Queue, RedisQueue
from api.sweeper import Sweeper
from db import tenants
from db.errors import InvalidTenant
from db.session import connect, migrate, session_factory
from db.settings import Settings
from db.tracing import TracingMissing, tracer

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider


def create_app(settings: Settings, queue: Queue | None = None) -> FastAPI:
    """The app; nothing is opened before its lifespan begins. `queue` stands in for Redis in tests.

    Raises TracingMissing.
    """
    metrics, traces = Metrics(), tracer(settings, "api")

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        """Bring the database up to date, then sweep until the server stops. Raises InvalidTenant."""
        for folder in (settings.home, settings.data_folder, settings.uploads, settings.files):
            folder.mkdir(parents=True, exist_ok=True)
        database = connect(settings.database)
        migrate(database)
        sessions = session_factory(database)
        if settings.auth:  # else there is nobody to keep apart: every caller is the operator
            try:
                with sessions.begin() as session:
                    tenants.check_apart(session, settings)
            except InvalidTenant:
                database.dispose()
                raise
        sender = queue or RedisQueue(settings.redis_url)
        sweeper = Sweeper(settings, sessions, sender)
        services = Services(settings, database, sessions, sender, sweeper, metrics)
        app.state.services, app.state.keeper = services, Keeper(services)
        sweeper.start()
        app.state.keeper.start()
        postman = Postman(settings, sessions)
        postman.start()
        try:
            yield
        finally:
            postman.stop()
            app.state.keeper.stop()
            sweeper.stop()
            database.dispose()
            traces.close()

    app = FastAPI(
        title="Nightmill",
        version=version("nightmill"),
        description="Batch inference for language models: a Parquet dataset in, a Parquet dataset out.",
        lifespan=lifespan,
    )
    routers = [module.router for module in (jobs, plans, results, schedules, uploads, system, webhooks, access)]
    for router in (*routers, *OPENAI_ROUTERS):
        app.include_router(router)
    dashboard.install(app)
    if not settings.auth:
        app.add_middleware(OwnPages)
    app.add_middleware(BodyLimit, upload_bytes=settings.max_upload_bytes)
    app.add_middleware(Timing, metrics=metrics)
    errors.install(app)
    if traces.provider is not None:
        instrument(app, traces.provider)
    return app


def instrument(app: FastAPI, provider: TracerProvider) -> None:
    """A span for every request but those of probes and scrapers. Raises TracingMissing."""
    try:
        from opentelemetry.instrumentation.fastapi import FastAPIInstrumentor
    except ImportError as error:
        raise TracingMissing(str(error.name)) from error
    FastAPIInstrumentor.instrument_app(app, tracer_provider=provider, excluded_urls="healthz,readyz,metrics")


def exposed(settings: Settings, queue: Queue | None = None) -> FastAPI:
    """The app as it may listen where a browser can reach it. Raises AuthRequired."""
    check_exposure(settings)
    app = create_app(settings, queue)
    if not settings.auth:
        app.add_middleware(OwnNames, host=settings.host)
    return app


def serve(settings: Settings, listener: socket.socket | None = None) -> None:
    """Run the app until SIGTERM or SIGINT, on a socket that listens already or on the configured address.

    Raises AuthRequired.
    """
    app = exposed(settings)
    import uvicorn  # Imported where used: an app under test needs no server.

    from db import log

    log.configure(settings)
    config = uvicorn.Config(
        app,
        host=settings.host,
        port=settings.port,
        log_config=None,  # ours
        log_level=settings.log_level,
        access_log=settings.log_level == "debug",
        timeout_graceful_shutdown=5,
    )
    uvicorn.Server(config).run(sockets=None if listener is None else [listener])
