"""Heartbeat: renews a lease from a thread of its own while the work goes on, and hears when the work should stop."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import TracebackType
from typing import Self

import structlog
from sqlalchemy.exc import SQLAlchemyError

from db.shards import Beat

log = structlog.get_logger()
MOST_SECONDS = 2.0  # a cancelled or paused job should not go on for a third of a long lease


class Heartbeat:
    """`with Heartbeat(beat, lease_seconds) as heart:` calls `beat` every third of the lease, or every two seconds.

    `verdict` is the latest answer; after one that is not OK there are no more beats. A database that is away is no
    verdict: as long as nobody else has taken the lease, work that is done counts.
    """

    def __init__(self, beat: Callable[[], Beat], lease_seconds: float) -> None:
        self._beat = beat
        self._pause = min(lease_seconds / 3, MOST_SECONDS)
        self._left = threading.Event()
        self._context = structlog.contextvars.get_contextvars()
        self._thread = threading.Thread(target=self._loop, name="heartbeat", daemon=True)
        self.verdict = Beat.OK

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._left.set()
        self._thread.join()

    def _loop(self) -> None:
        structlog.contextvars.bind_contextvars(**self._context)
        while self.verdict is Beat.OK and not self._left.wait(self._pause):
            try:
                self.verdict = self._beat()
            except SQLAlchemyError as error:
                log.warning("heartbeat failed", error=str(error))
