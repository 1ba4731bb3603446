"""Measures: which values are taken of a row, in which bucket, and what a row costs."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest

from db.histograms import percentiles
from engine.request import FinishReason, Output, Times
from tests.worker.fakes import FakeEngine
from worker.measures import AT_ONCE, Measures
from worker.parts import Tally
from worker.timings import Timings

OUTPUT = Output(0, (1,) * 5, FinishReason.LENGTH, 40, 10, 5)
TIMES = Times(0.01, 0.5, 2.0)


def counted(measures: Measures) -> dict[str, int]:
    return {name.removeprefix("histogram."): int(count) for name, count in measures.counters().items()}


def test_what_is_measured_of_a_row() -> None:
    measures = Measures()
    measures.note(OUTPUT, TIMES)
    measures.end(time.perf_counter())
    found = counted(measures)
    (latency,) = (name for name in found if name.startswith("row_latency_seconds"))
    assert int(latency.rpartition(".")[2]) <= -36  # under a millisecond
    del found[latency]
    # 10 ms; 30 tokens in 0.5 s; 4 tokens in 2 s.
    assert found == {
        "queue_wait_seconds.-24": 1,
        "prefill_tokens_per_second.21": 1,  # 56.2
        "decode_tokens_per_second.4": 1,  # 2.15
    }


@pytest.mark.parametrize(
    ("output", "missing"),
    [
        (replace(OUTPUT, num_cached_tokens=40), {"prefill"}),
        (replace(OUTPUT, num_output_tokens=1), {"decode"}),
        (replace(OUTPUT, choice_logprobs=(-1.0,)), {"decode"}),  # chosen, not decoded
    ],
)
def test_what_was_not_there_is_not_measured(output: Output, missing: set[str]) -> None:
    measures = Measures()
    measures.note(output, TIMES)
    found = {name.partition("_")[0] for name in counted(measures)}
    assert found == {"queue", "prefill", "decode"} - {name.partition("_")[0] for name in missing}


def test_extremes_have_a_bucket() -> None:
    measures = Measures()
    measures.note(OUTPUT, Times(0.0, 1e-12, 1e12))
    assert counted(measures) == {
        "queue_wait_seconds.-48": 1,
        "prefill_tokens_per_second.72": 1,
        "decode_tokens_per_second.-48": 1,
    }


def test_many_rows_are_counted_in_little_memory() -> None:
    measures = Measures()
    for _ in range(3 * AT_ONCE + 7):
        measures.note(OUTPUT, TIMES)
        measures.end(time.perf_counter())
    assert max(map(len, measures._values.values())) < AT_ONCE
    found = counted(measures)
    assert found["queue_wait_seconds.-24"] == 3 * AT_ONCE + 7
    assert counted(measures) == found  # asking again adds nothing
    tally = Tally()
    tally.measures = measures
    assert tally.counts.engine["histogram.queue_wait_seconds.-24"] == 3 * AT_ONCE + 7


def test_a_row_costs_little() -> None:
    """At 21,500 rows per second of a processor a row has 46 microseconds; a busy machine is allowed for."""
    measures, rows = Measures(), 20 * AT_ONCE
    began = time.thread_time()
    for _ in range(rows):
        measures.note(OUTPUT, TIMES)
        measures.end(time.perf_counter())
    assert (time.thread_time() - began) / rows < 5e-6


def test_how_full_steps_are() -> None:
    timings, engine = Timings(), FakeEngine()
    stats = engine.stats()
    for step, (slices, used) in enumerate([(8, 50), (12, 100), (12, 0)], 1):
        timings.note(0.0, replace(stats, steps=step, slices=slices, blocks_total=100, blocks_used=used))
    timings.note(0.0, replace(stats, steps=3))  # nothing was computed
    timings.note(0.0, replace(stats, steps=1, slices=5))  # another engine
    assert timings.occupancy == {
        "histogram.batch_occupancy.50": 1,  # 8 of 8
        "histogram.batch_occupancy.25": 1,
        "histogram.batch_occupancy.0": 1,
        "histogram.kv_occupancy.25": 1,
        "histogram.kv_occupancy.50": 1,
        "histogram.kv_occupancy.0": 1,
    }
    counts = {"25": 1, "50": 1, "0": 1}
    assert percentiles("batch_occupancy", counts) is not None
