"""Tasks: the names on the queue, bound to what a process does for them. Messages carry ids and nothing else."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import structlog
from celery import Celery
from kombu.exceptions import OperationalError

from db.dispatch import PRIORITIES, Wakeup
from worker.dry_run import dry_run
from worker.merge import merge
from worker.process import Process
from worker.run import run
from worker.sources import Stopped
from worker.split import split

SECONDS = 3  # for a connection to the broker
QUEUE = "nightmill"
PREFIX = "nightmill."


def register(app: Celery, process: Callable[[], Process]) -> None:
    """Bind the four tasks to the process that `process()` gives once the worker has started."""

    @contextlib.contextmanager
    def guarded() -> Iterator[Process]:
        """Raises Stopped where nothing was taken up yet and the process is to end: others get the message's work."""
        with process().runner.alone.guarded(process().drain.is_set):
            yield process()

    @contextlib.contextmanager
    def about(task: str, what: str, name: str) -> Iterator[Process]:
        known = {what: name}
        with structlog.contextvars.bound_contextvars(**known), process().tracer.span(task, **known), guarded() as own:
            yield own

    @app.task(name=PREFIX + "split")
    def split_task(job_id: str) -> None:
        with contextlib.suppress(Stopped), about("split", "job", job_id) as own:
            split(own, job_id)

    @app.task(name=PREFIX + "run")
    def run_task(shard_id: int) -> None:
        with contextlib.suppress(Stopped), guarded() as own:
            run(own)  # which shard it is, the database says: what is more urgent may have come meanwhile

    @app.task(name=PREFIX + "merge")
    def merge_task(job_id: str) -> None:
        with contextlib.suppress(Stopped), about("merge", "job", job_id) as own:
            merge(own, job_id)

    @app.task(name=PREFIX + "plan")
    def plan_task(plan_id: str) -> None:
        with contextlib.suppress(Stopped), about("plan", "plan", plan_id) as own:
            dry_run(own, plan_id)


def sender(app: Celery) -> Callable[[Wakeup], None]:
    """A function that puts a wake-up on the queue at once, or raises: whoever calls it has a sweep behind it."""

    def send(wakeup: Wakeup) -> None:
        priority = PRIORITIES[wakeup.task]
        app.send_task(PREFIX + wakeup.task, args=[wakeup.id], queue=QUEUE, retry=False, priority=priority)

    return send


def counter(app: Celery) -> Callable[[], int]:
    """A function that gives the number of messages in the queue. Raises kombu's OperationalError."""

    def lying() -> int:
        with app.connection_for_write() as connection:
            connection.ensure_connection(max_retries=1, interval_start=0, timeout=SECONDS)
            channel: Any = connection.default_channel  # of the Redis transport
            try:
                return int(channel._size(QUEUE))  # over the lists of all priorities
            except connection.connection_errors as error:  # the client's own, not kombu's
                raise OperationalError(str(error)) from error

    return lying
