"""sweep: what a lost message left behind is sent again, and the worker says that it lives."""

from __future__ import annotations

import resource
import sys
import threading
from dataclasses import asdict

import structlog
from sqlalchemy.exc import SQLAlchemyError

from db import firing
from db.redaction import shown
from db.workers import worker_gone, worker_seen
from worker.process import Process

log = structlog.get_logger()


class Sweeper:
    """A thread that looks every `sweep_seconds`. Any number of processes may sweep at once."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._left = threading.Event()
        self._thread = threading.Thread(target=self._loop, name="sweep", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """The worker ends: nobody is to count on it any more."""
        self._left.set()
        self._thread.join()
        try:
            with self._process.sessions.begin() as session:
                worker_gone(session, self._process.owner)
        except SQLAlchemyError as error:
            log.warning("the worker's record stays for a while", error=str(error))

    def _loop(self) -> None:
        while not self._left.wait(self._process.settings.sweep_seconds):
            try:
                sweep(self._process)
            except Exception as error:  # The thread must outlive every failure of database and broker.
                log.warning("sweep failed", error=shown(str(error)))


def sweep(process: Process) -> None:
    stats = process.runner.stats
    engine = {} if stats is None else asdict(stats)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    with process.sessions.begin() as session:
        worker_seen(session, process.owner, process.runner.model, {**engine, "memory_bytes": peak})
    if not process.drain.is_set():
        firing.sweep(process.sessions, process.settings)
        process.dispatch(again=True)
