"""Timings: what the engine's steps computed, how full they were and how long they took."""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

from db.histograms import PREFIX, SHARE_STEPS, SHARES, share_bucket
from engine import EngineStats
from engine.simulation import Work
from worker.counters import Counters

BATCH, CACHE = ([f"{PREFIX}{measure}.{bucket}" for bucket in range(SHARE_STEPS + 1)] for measure in SHARES)


class TimedStep(NamedTuple):
    seconds: float
    work: Work


class Timings:
    """Owned by the engine thread; any thread may `watch`."""

    def __init__(self) -> None:
        self._watching: tuple[list[TimedStep], ...] = ()
        self._last: EngineStats | None = None
        self._occupancy: Counter[str] = Counter()

    @property
    def occupancy(self) -> Counters:
        """How full the steps' batches and the cache have been since the process began, in buckets."""
        return dict(self._occupancy)

    @contextlib.contextmanager
    def watch(self) -> Iterator[list[TimedStep]]:
        """A list that gets every step from now on, whosever requests are in it, until the block ends."""
        steps: list[TimedStep] = []
        self._watching = (*self._watching, steps)
        try:
            yield steps
        finally:
            self._watching = tuple(each for each in self._watching if each is not steps)

    def note(self, began: float, stats: EngineStats) -> None:
        """A turn that began at this reading of time.perf_counter has ended; `stats` are the engine's now."""
        seconds, last, self._last = time.perf_counter() - began, self._last, stats
        steps = stats.steps - (0 if last is None else last.steps)
        if steps != 1:  # nothing was computed, or the engine is another one
            return
        slices = stats.slices - (0 if last is None else last.slices)
        self._occupancy[BATCH[share_bucket(slices / stats.max_sequences)]] += 1
        self._occupancy[CACHE[share_bucket(stats.blocks_used / max(stats.blocks_total, 1))]] += 1
        if self._watching:
            step = TimedStep(seconds, Work(*(now - then for now, then in zip(_sums(stats), _sums(last), strict=True))))
            for watcher in self._watching:
                watcher.append(step)


def _sums(stats: EngineStats | None) -> Work:
    if stats is None:
        return Work(0, 0, 0, 0, 0)
    return Work(stats.computed_tokens, stats.slices, stats.context_tokens, stats.attended_tokens, stats.logit_rows)
