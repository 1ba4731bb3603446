"""Watchdog: finds that the engine's thread hangs in a step."""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections.abc import Callable, Iterator


class Watchdog:
    """Calls `bark` once, from a thread of its own, when something watched lasts longer than `seconds`."""

    def __init__(self, seconds: float, bark: Callable[[], None]) -> None:
        self._seconds = seconds
        self._bark = bark
        self._since = math.inf
        self._left = threading.Event()
        self._thread = threading.Thread(target=self._loop, name="watchdog", daemon=True)

    def start(self) -> None:
        if self._seconds < math.inf:
            self._thread.start()

    def stop(self) -> None:
        self._left.set()

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        self._since = time.monotonic()
        try:
            yield
        finally:
            self._since = math.inf

    def _loop(self) -> None:
        while not self._left.wait(min(self._seconds / 4, 5.0)):
            if time.monotonic() - self._since > self._seconds:
                self._bark()
                return
