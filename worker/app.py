"""The Celery instance: its settings, and the start and end of a worker process.

Started by `python -m worker`. The broker is only a hint, the database the truth; so messages are acknowledged early
and nothing depends on what Celery or Redis remember.
"""

from __future__ import annotations

import ctypes
import os
import socket
import sys
import time
from typing import Any

import pyarrow as pa
import structlog
from celery import Celery, signals

from db import log as logs
from db.session import connect, migrate, session_factory
from db.settings import Settings
from db.tracing import Tracer, TracingMissing, tracer
from worker.models import earlier_results, load_model, salt
from worker.process import Process
from worker.runner import Runner
from worker.sweep import Sweeper
from worker.tasks import QUEUE, counter, register, sender

log = structlog.get_logger()

CONFIG: dict[str, Any] = {
    "task_default_queue": QUEUE,
    "worker_pool": "threads",
    "worker_prefetch_multiplier": 1,
    # Late acknowledgement would keep unacknowledged messages, and with them three faults: Celery 5.7.0 ends when Redis
    # drops, messages come twice after the visibility timeout, and unacked_mutex stops all redelivery for minutes.
    "task_acks_late": False,
    # With early acknowledgement a worker would fetch as many messages again as it has threads.
    "worker_disable_prefetch": True,
    "task_ignore_result": True,
    "result_backend": None,
    "task_serializer": "json",
    "accept_content": ["json"],
    "broker_connection_retry_on_startup": True,
    "broker_connection_max_retries": None,
    "broker_transport_options": {
        "visibility_timeout": 3600,
        "socket_timeout": 10,
        "socket_connect_timeout": 5,
        "health_check_interval": 10,
        "unacked_mutex_expire": 30,
    },
    "worker_enable_remote_control": True,  # for ping alone
    "worker_eta_task_limit": 100,
    "worker_hijack_root_logger": False,
    "worker_redirect_stdouts": False,
}


M_ARENA_MAX = -8  # malloc.h
HANG_GRACE_SECONDS = 5.0
EX_TEMPFAIL = 75  # sysexits.h: whoever supervises the worker should start it again


class WorkerApp:
    """A Celery app and the process around it."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.celery = Celery("nightmill", broker=settings.redis_url or None)
        self.celery.conf.update(CONFIG, worker_concurrency=settings.worker_threads)
        self._process: Process | None = None
        self._sweeper: Sweeper | None = None
        register(self.celery, self.process)
        signals.setup_logging.connect(self._log, weak=False)
        signals.worker_init.connect(self._start, weak=False)
        signals.worker_ready.connect(self._ready, weak=False)
        signals.worker_shutting_down.connect(self._drain, weak=False)
        signals.worker_shutdown.connect(self._end, weak=False)

    def process(self) -> Process:
        assert self._process is not None, "tasks run in a started worker"
        return self._process

    def _log(self, **_: object) -> None:
        logs.configure(self.settings)

    def _start(self, **_: object) -> None:
        """Celery logs what a handler of a signal raises and goes on: a worker without a database would take messages
        and do nothing with them. SystemExit it lets through, and whoever supervises the worker starts another."""
        try:
            self._open()
        except Exception as error:
            log.critical("the worker cannot start", error=str(error))
            raise SystemExit(EX_TEMPFAIL) from error

    def _open(self) -> None:
        settings = self.settings
        keep_memory_flat()
        database = connect(settings.database)
        migrate(database)
        runner = Runner(
            lambda name: load_model(name, settings),
            settings.hang_seconds,
            leave,
            earlier_results(settings),
            lambda name: salt(name, settings),
        )
        owner = f"{socket.gethostname()}:{os.getpid()}"
        traces = traced(settings)
        send, lying = sender(self.celery), counter(self.celery)
        self._process = Process(settings, session_factory(database), runner, send, lying, owner, tracer=traces)
        self._sweeper = Sweeper(self._process)

    def _ready(self, **_: object) -> None:
        assert self._sweeper is not None, "worker_init comes first"
        self._sweeper.start()
        log.info("worker ready", owner=self.process().owner, threads=self.settings.worker_threads)

    def _drain(self, **_: object) -> None:
        """The first SIGTERM: tasks give their shards back and return, so that Celery need not wait for them."""
        if self._process is not None:
            self._process.drain.set()

    def _end(self, **_: object) -> None:
        if self._process is not None and self._sweeper is not None:
            self._sweeper.stop()
            self._process.runner.close()
            self._process.tracer.close()
        log.info("worker ended")


def traced(settings: Settings) -> Tracer:
    """The process's tracer; with one, every task has a span. Raises TracingMissing."""
    made = tracer(settings, "worker")
    if made.provider is not None:
        try:
            from opentelemetry.instrumentation.celery import CeleryInstrumentor
        except ImportError as error:
            raise TracingMissing(str(error.name)) from error
        instrumentor: Any = CeleryInstrumentor  # it has no types
        instrumentor().instrument(tracer_provider=made.provider)
    return made


def leave() -> None:
    """The engine hangs, and only the end of the process ends its thread. Tasks have a moment to save and give back."""
    time.sleep(HANG_GRACE_SECONDS)
    log.critical("worker ends because its engine hangs")
    os._exit(EX_TEMPFAIL)


def keep_memory_flat() -> None:
    """Arrow's own pool keeps what it once needed, thread by thread, and glibc does the same in an arena for each."""
    pa.set_memory_pool(pa.system_memory_pool())
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is not None:  # musl has none
        mallopt(M_ARENA_MAX, 2)


app = WorkerApp(Settings()).celery
