"""Tasks: the names on the queue, bound to what a process does for them. Messages carry ids and nothing else."""

from __future__ import annotations

from collections.abc import Callable

import structlog
from celery import Celery

from db.dispatch import PRIORITIES, Wakeup
from worker.dry_run import dry_run
from worker.merge import merge
from worker.process import Process
from worker.run import run
from worker.split import split

QUEUE = "nightmill"
PREFIX = "nightmill."


def register(app: Celery, process: Callable[[], Process]) -> None:
    """Bind the four tasks to the process that `process()` gives once the worker has started."""

    @app.task(name=PREFIX + "split")
    def split_task(job_id: str) -> None:
        with structlog.contextvars.bound_contextvars(job=job_id), process().tracer.span("split", job=job_id):
            split(process(), job_id)

    @app.task(name=PREFIX + "run")
    def run_task(shard_id: int) -> None:
        run(process())  # which shard it is, the database says: what is more urgent may have come meanwhile

    @app.task(name=PREFIX + "merge")
    def merge_task(job_id: str) -> None:
        with structlog.contextvars.bound_contextvars(job=job_id), process().tracer.span("merge", job=job_id):
            merge(process(), job_id)

    @app.task(name=PREFIX + "plan")
    def plan_task(plan_id: str) -> None:
        with structlog.contextvars.bound_contextvars(plan=plan_id), process().tracer.span("plan", plan=plan_id):
            dry_run(process(), plan_id)


def sender(app: Celery) -> Callable[[Wakeup], None]:
    """A function that puts a wake-up on the queue at once, or raises: whoever calls it has a sweep behind it."""

    def send(wakeup: Wakeup) -> None:
        priority = PRIORITIES[wakeup.task]
        app.send_task(PREFIX + wakeup.task, args=[wakeup.id], queue=QUEUE, retry=False, priority=priority)

    return send
