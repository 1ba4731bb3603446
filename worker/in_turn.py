"""InTurn: the tasks whose requests the engine takes, each in its turn. All calls under the Runner's lock."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator
from itertools import count

from engine.request import Output, Request
from worker.sources import EngineFailed, Source


class InTurn:
    def __init__(self, lock: threading.Lock, wake: threading.Condition) -> None:
        self._lock = lock
        self._wake = wake
        self._sources: deque[Source] = deque()
        self._orphans: list[tuple[int, Hashable]] = []  # requests in the engine whose task is gone
        self._numbers = count()

    def __iter__(self) -> Iterator[Source]:
        return iter(self._sources)

    @property
    def orphaned(self) -> bool:
        return bool(self._orphans)

    def add(self, owner: object, reuse: str | None, guarded: bool) -> Source:
        changed = threading.Condition(self._lock)
        source = Source(next(self._numbers), owner, self._lock, self._wake, changed, reuse, guarded)
        self._sources.append(source)
        return source

    def remove(self, source: Source) -> None:
        """Its task wants no more; what it has in the engine is given up."""
        if source in self._sources:  # else it has failed
            self._sources.remove(source)
            self._orphans += [(source.number, request_id) for request_id in source.in_engine]
            self._wake.notify()

    def take_orphans(self) -> list[tuple[int, Hashable]]:
        orphans, self._orphans = self._orphans, []
        return orphans

    def take(self, admits: Callable[[Source], bool]) -> tuple[Request, str | None] | None:
        """The next request, and the tenant within which it may be answered by another one's answer."""
        for _ in range(len(self._sources)):
            source = self._sources[0]
            self._sources.rotate(-1)
            if source.offers and admits(source):
                return source.take(), source.reuse
        return None

    def deliver(self, outputs: Iterable[Output]) -> None:
        sources = {source.number: source for source in self._sources}
        for output in outputs:
            assert isinstance(output.id, tuple)  # made by Source.take
            number, request_id = output.id
            if number in sources:  # else the task of an aborted request is gone
                sources[number].deliver(output, request_id)

    def fail(self, failure: EngineFailed) -> None:
        """Tell every task that still has requests in the engine."""
        for source in self._sources:
            source.failure = failure
            source.changed.notify()
        self._sources.clear()
        self._orphans.clear()
