"""Alone: one task has the engine to itself for a while, so that a crash can only be due to its rows.

Those rows may well end the whole process. What other tasks have begun must not suffer for it, since how often a task
may be begun is bounded: so nobody has the engine alone while another task is guarded, and nobody takes anything up
while somebody has.
"""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Iterable, Iterator

from worker.sources import POLL_SECONDS, EngineFailed, Source, Stop, Stopped


class Alone:
    """Who wants the engine alone or a guard, in order of arrival. `lock` and `sources` are the Runner's."""

    def __init__(self, lock: threading.Lock, sources: Iterable[Source]) -> None:
        self._lock = lock
        self._sources = sources
        self._waiting: deque[object] = deque()
        self._changed = threading.Condition(lock)
        self._guards = 0
        self._here = threading.local()  # `guarded`: the calling thread is

    def admits(self, source: Source) -> bool:
        """Whether a source may put a request in. Under the lock."""
        return source.guarded or not self._waiting or self._waiting[0] is source.owner

    @contextlib.contextmanager
    def held(self, owner: object, model: str, stop: Stop) -> Iterator[None]:
        """Wait until the others' requests are out of the engine and nobody is guarded; the calling thread is not any
        more. `owner` is running requests. Raises Stopped, and EngineFailed when the engine failed meanwhile: with
        others' requests, so that the owner's are not to blame."""
        self.unguard()
        with self._lock:
            self._waiting.append(owner)
        try:
            with self._lock:
                while self._waiting[0] is not owner or self._guards or self._busy(owner):
                    if stop():
                        raise Stopped
                    self._changed.wait(POLL_SECONDS / 10)
                if not any(source.owner is owner for source in self._sources):  # a failure takes all of them out
                    raise EngineFailed(model, RuntimeError("it ended with another shard's rows"))
            yield
        finally:
            with self._lock:
                self._leave(owner)

    @contextlib.contextmanager
    def guarded(self, stop: Stop) -> Iterator[None]:
        """Guard the calling thread. Raises Stopped."""
        self.guard(stop)
        try:
            yield
        finally:
            self.unguard()

    def guard(self, stop: Stop) -> None:
        """From now on nobody has the engine alone; waits for who has. Raises Stopped."""
        turn = object()
        with self._lock:
            self._waiting.append(turn)
            try:
                while self._waiting[0] is not turn:
                    if stop():
                        raise Stopped
                    self._changed.wait(POLL_SECONDS / 10)
                self._guards += 1
                self._here.guarded = True
            finally:
                self._leave(turn)

    def unguard(self) -> None:
        """Nothing to do for a thread that is not guarded."""
        if self.guards_here:
            with self._lock:
                self._here.guarded = False
                self._guards -= 1
                self._changed.notify_all()

    @property
    def guards_here(self) -> bool:
        """Whether the calling thread is guarded."""
        return getattr(self._here, "guarded", False)

    def _leave(self, who: object) -> None:
        self._waiting.remove(who)
        self._changed.notify_all()
        for source in self._sources:
            source.wake.notify()

    def _busy(self, owner: object) -> bool:
        return any(source.in_engine for source in self._sources if source.owner is not owner)
