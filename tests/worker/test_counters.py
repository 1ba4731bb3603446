"""Counters: what of the engine's work is put down to which job."""

from __future__ import annotations

from tests.worker.fakes import FakeEngine
from worker.counters import BESIDE, Meters, added, counters_of, shown


def test_counters_of_an_engine() -> None:
    assert counters_of(None) == {}
    counters = counters_of(FakeEngine(steps=3).stats())
    drafts = {name: value for name, value in counters.items() if "." in name}
    assert drafts == {"drafts.forced.proposed": 6, "drafts.forced.accepted": 3, "drafts.forced.steps": 3}
    assert (counters["steps"], counters["preemptions"]) == (3, 0)
    assert counters.keys().isdisjoint({"running", "waiting", "blocks_total", "blocks_used", "blocks_cached"})


def test_shown() -> None:
    assert shown({"steps": 2}) == {"steps": 2}
    assert shown({"steps": 2, "drafts.prompt.proposed": 0}) == {
        "steps": 2,
        "drafts": {"prompt": {"proposed": 0, "acceptance_rate": 0.0, "tokens_per_step": 0.0}},
    }
    assert added({"a": 3, "b": 1}, {"a": 1, "c": 2}, -1) == {"a": 2, "b": 1, "c": -2}


def test_a_job_alone() -> None:
    meters = Meters()
    meters.join("a", 1, {"steps": 5})
    meters.join("a", 2, {"steps": 7})
    assert meters.take("a", {"steps": 10}) == {"steps": 5}  # its first shard is done
    meters.leave("a", 1, {"steps": 11})
    meters.leave("a", 2, {"steps": 13})
    assert meters.take("a", {"steps": 20}) == {"steps": 3}  # nothing twice, and nothing of when it was away
    assert meters.take("a", {"steps": 20}) == {}


def test_jobs_at_once_are_given_the_same_work_and_told_so() -> None:
    meters = Meters()
    meters.join("a", 1, {})
    meters.join("b", 2, {"steps": 4})
    meters.leave("a", 1, {"steps": 6})
    meters.leave("b", 2, {"steps": 9})
    beside = {BESIDE: 1}
    assert (meters.take("a", {}), meters.take("b", {})) == ({"steps": 6, **beside}, {"steps": 5, **beside})
    meters.join("b", 3, {"steps": 9})
    assert meters.take("b", {"steps": 10}) == {"steps": 1}


def test_a_new_engine_counts_from_zero() -> None:
    meters = Meters()
    meters.join("a", 1, {"steps": 100})
    meters.restart()
    meters.join("a", 2, {})
    meters.leave("a", 1, {"steps": 1})
    meters.leave("a", 2, {"steps": 2})
    assert meters.take("a", {}) == {"steps": 2}


def test_jobs_that_nobody_comes_for_are_forgotten() -> None:
    meters = Meters()
    for number in range(100):
        meters.join(f"j{number}", number, {})
        meters.leave(f"j{number}", number, {"steps": 1})
    assert meters.take("j35", {}) == {}
    assert meters.take("j36", {}) == {"steps": 1}
