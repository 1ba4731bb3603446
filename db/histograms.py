"""Histograms: values counted in fixed buckets, so that those of rows, shards and spans of time can be added up.

A histogram is its counts by bucket number, as text, since JSON has no other keys; empty buckets are left out. Of times
and rates there are twelve buckets to a decade, from 10^-4 to 10^6, and a percentile is the middle of its bucket: at
most 10.1 % from the true one (a factor of 10^(1/24)). Of shares there are fifty: at most 0.01 from the true one.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import accumulate
from typing import TypeAlias

PER_DECADE, LEAST, MOST = 12, -48, 72
SHARE_STEPS = 50
TIMES_AND_RATES = (
    "row_latency_seconds",  # from a row's requests to its result, whoever had the answer
    "queue_wait_seconds",  # of a request in the engine, until it is first admitted
    "prefill_tokens_per_second",  # of a request: prompt tokens that were not in the cache
    "decode_tokens_per_second",  # of a request: tokens after the first one
)
SHARES = (
    "batch_occupancy",  # of a step: sequences in it, of those that may run together
    "kv_occupancy",  # of a step: blocks of the cache in use after it
)
MEASURES = (*TIMES_AND_RATES, *SHARES)
PREFIX = "histogram."  # of a bucket's name among an engine's counters: histogram.MEASURE.BUCKET

Histogram: TypeAlias = dict[str, int]
Histograms: TypeAlias = dict[str, Histogram]  # by measure


@dataclass(frozen=True, slots=True)
class Percentiles:
    """Nearest-rank percentiles of `count` values, each as exact as its bucket is narrow."""

    p50: float
    p90: float
    p99: float
    count: int


def share_bucket(share: float) -> int:
    return min(max(round(share * SHARE_STEPS), 0), SHARE_STEPS)


def middle(measure: str, bucket: int) -> float:
    """The value that stands for a bucket."""
    return bucket / SHARE_STEPS if measure in SHARES else float(f"{10.0 ** (bucket / PER_DECADE):.4g}")


def percentiles(measure: str, counts: Mapping[str, int]) -> Percentiles | None:
    """None: nothing was counted."""
    buckets = sorted((int(bucket), count) for bucket, count in counts.items() if count > 0)
    if not buckets:
        return None
    ranks = list(accumulate(count for _, count in buckets))  # of the last value in each bucket
    places = (bisect_left(ranks, math.ceil(ranks[-1] * percent / 100)) for percent in (50, 90, 99))
    p50, p90, p99 = (middle(measure, buckets[place][0]) for place in places)
    return Percentiles(p50, p90, p99, ranks[-1])


def of_counters(counters: Mapping[str, float]) -> tuple[dict[str, float], Histograms]:
    """An engine's counters without the buckets among them, and the histograms of those."""
    others: dict[str, float] = {}
    found: Histograms = {}
    for name, value in counters.items():
        if not name.startswith(PREFIX):
            others[name] = value
        elif value:
            measure, bucket = name.removeprefix(PREFIX).split(".")
            found.setdefault(measure, {})[bucket] = int(value)
    return others, found


def added(one: Mapping[str, Mapping[str, int]], other: Mapping[str, Mapping[str, int]]) -> Histograms:
    total = {measure: dict(counts) for measure, counts in one.items()}
    for measure, counts in other.items():
        into = total.setdefault(measure, {})
        for bucket, count in counts.items():
            into[bucket] = into.get(bucket, 0) + count
    return total


def summary(histograms: Mapping[str, Mapping[str, int]]) -> dict[str, Percentiles]:
    """By measure, in the order of MEASURES; what was never measured is left out."""
    found = {measure: percentiles(measure, histograms.get(measure, {})) for measure in MEASURES}
    return {measure: each for measure, each in found.items() if each is not None}
