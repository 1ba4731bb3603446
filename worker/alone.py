"""Alone: one task has the engine to itself for a while, so that a crash can only be due to its rows."""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Iterator

from worker.sources import POLL_SECONDS, EngineFailed, Source, Stop, Stopped


class Alone:
    """Who wants the engine alone, in order of arrival. `lock` and `sources` are the Runner's."""

    def __init__(self, lock: threading.Lock, sources: deque[Source]) -> None:
        self._lock = lock
        self._sources = sources
        self._waiting: deque[object] = deque()
        self._changed = threading.Condition(lock)

    def admits(self, source: Source) -> bool:
        """Whether a source may put a request in. Under the lock."""
        return not self._waiting or self._waiting[0] is source.owner

    @contextlib.contextmanager
    def held(self, owner: object, model: str, stop: Stop) -> Iterator[None]:
        """Wait until the others' requests are out of the engine. `owner` is running requests. Raises Stopped, and
        EngineFailed when the engine failed meanwhile: with others' requests, so that the owner's are not to blame."""
        with self._lock:
            self._waiting.append(owner)
        try:
            with self._lock:
                while self._waiting[0] is not owner or self._busy(owner):
                    if stop():
                        raise Stopped
                    self._changed.wait(POLL_SECONDS / 10)
                if not any(source.owner is owner for source in self._sources):  # a failure takes all of them out
                    raise EngineFailed(model, RuntimeError("it ended with another shard's rows"))
            yield
        finally:
            with self._lock:
                self._waiting.remove(owner)
                self._changed.notify_all()
                for source in self._sources:
                    source.wake.notify()

    def _busy(self, owner: object) -> bool:
        return any(source.in_engine for source in self._sources if source.owner is not owner)
