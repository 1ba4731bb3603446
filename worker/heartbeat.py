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

    `verdict` is the first answer that is not OK. Beats go on after it, until the lease is lost: to write what is
    finished may take longer than a lease. A database that is away is no verdict: as long as nobody else has taken the
    lease, work that is done counts.
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
        while self.verdict is not Beat.LOST and not self._left.wait(self._pause):
            try:
                found = self._beat()
                if self.verdict is Beat.OK or found is Beat.LOST:
                    self.verdict = found
            except SQLAlchemyError as error:
                log.warning("heartbeat failed", error=str(error))
