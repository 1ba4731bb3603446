"""Percentiles from buckets: as exact as they say, and the same however the values were counted."""

from __future__ import annotations

import math
import random

import pytest

from db.histograms import MEASURES, SHARES, added, middle, of_counters, percentiles, share_bucket, summary


@pytest.mark.parametrize("percent", [50, 90, 99])
def test_a_percentile_is_at_most_a_bucket_off(percent: int) -> None:
    draw = random.Random(percent)
    values = sorted(draw.lognormvariate(0.0, 2.0) for _ in range(5000))
    counts: dict[str, int] = {}
    for value in values:
        bucket = str(round(12 * math.log10(value)))
        counts[bucket] = counts.get(bucket, 0) + 1
    found = percentiles("row_latency_seconds", counts)
    assert found is not None
    assert found.count == 5000
    true = values[math.ceil(5000 * percent / 100) - 1]
    assert abs(math.log10(getattr(found, f"p{percent}") / true)) <= 1 / 24 + 1e-3
    assert 10 ** (1 / 24) < 1.101


def test_percentiles_of_shares() -> None:
    counts = {str(share_bucket(value / 100)): 1 for value in range(0, 101, 2)}
    found = percentiles("batch_occupancy", counts)
    assert found is not None
    assert (found.p50, found.p90, found.p99, found.count) == (0.5, 0.9, 1.0, 51)
    assert (share_bucket(-1.0), share_bucket(7.0)) == (0, 50)


def test_few_values() -> None:
    assert percentiles("queue_wait_seconds", {}) is None
    assert percentiles("queue_wait_seconds", {"0": 0}) is None
    one = percentiles("queue_wait_seconds", {"-12": 1})
    assert one is not None
    assert (one.p50, one.p90, one.p99, one.count) == (0.1, 0.1, 0.1, 1)
    two = percentiles("queue_wait_seconds", {"-12": 1, "12": 1})
    assert two is not None
    assert (two.p50, two.p90) == (0.1, 10.0)


def test_counters_and_buckets_are_told_apart() -> None:
    counters = {"steps": 7.0, "histogram.kv_occupancy.3": 2.0, "histogram.kv_occupancy.4": 0.0}
    counters["histogram.row_latency_seconds.-7"] = 1.0
    others, found = of_counters(counters)
    assert others == {"steps": 7.0}
    assert found == {"kv_occupancy": {"3": 2}, "row_latency_seconds": {"-7": 1}}
    assert of_counters({}) == ({}, {})


def test_adding_changes_neither() -> None:
    one, other = {"kv_occupancy": {"3": 2}}, {"kv_occupancy": {"3": 1, "5": 4}, "batch_occupancy": {"1": 1}}
    assert added(one, other) == {"kv_occupancy": {"3": 3, "5": 4}, "batch_occupancy": {"1": 1}}
    assert (one, other["kv_occupancy"]) == ({"kv_occupancy": {"3": 2}}, {"3": 1, "5": 4})
    assert list(summary(added(one, other))) == list(SHARES)
    assert set(SHARES) < set(MEASURES)
    assert middle("kv_occupancy", 25) == 0.5
