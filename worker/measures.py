"""Measures: how long the rows of a shard took, counted in buckets.

Values are put down as they come and counted a thousand at a time: a row costs a few tenths of a microsecond.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable

import numpy as np

from db.histograms import LEAST, MOST, PER_DECADE, PREFIX, TIMES_AND_RATES
from engine.request import Output, Times
from worker.counters import Counters

AT_ONCE = 1024


class Measures:
    """Of one attempt at a shard; rows that an earlier one had finished are not in them. One thread's."""

    def __init__(self) -> None:
        self._values: dict[str, list[float]] = {measure: [] for measure in TIMES_AND_RATES}
        self._latency, self._wait, self._prefill, self._decode = self._values.values()
        self._counts: Counter[str] = Counter()

    def note(self, output: Output, times: Times) -> None:
        """What the engine tells of a request."""
        self._wait.append(times.waited)
        computed = output.num_prompt_tokens - output.num_cached_tokens
        if computed and times.prefill > 0:
            self._prefill.append(computed / times.prefill)
        if output.num_output_tokens > 1 and times.decode > 0 and output.choice_logprobs is None:
            self._decode.append((output.num_output_tokens - 1) / times.decode)

    def end(self, began: float) -> None:
        """A row has its result, whose first requests were made at this reading of time.perf_counter."""
        self._latency.append(time.perf_counter() - began)
        if len(self._latency) >= AT_ONCE:
            self._count()

    def counters(self) -> Counters:
        """Buckets as they stand among an engine's counters."""
        self._count()
        return dict(self._counts)

    def _count(self) -> None:
        for measure, values in self._values.items():
            if values:
                self._counts.update(_buckets(measure, values))
                values.clear()


def _buckets(measure: str, values: Iterable[float]) -> dict[str, int]:
    logs = np.log10(np.maximum(np.fromiter(values, np.float64), 1e-9))
    numbers = np.clip(np.rint(PER_DECADE * logs), LEAST, MOST).astype(np.int64)
    counts = np.bincount(numbers - LEAST)
    return {f"{PREFIX}{measure}.{place + LEAST}": int(counts[place]) for place in np.flatnonzero(counts)}
