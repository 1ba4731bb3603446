"""SharedEngine: shards as flows, beside the simulator's own count."""

from __future__ import annotations

import math

import pytest

from engine.config import EngineConfig
from engine.errors import InvalidRequest
from engine.simulation import FittedCost, simulate
from engine.simulation.lengths import Lengths
from engine.simulation.shared import Pace, Profile, SharedEngine

CONFIG = EngineConfig(num_blocks=400, max_sequences=8, token_budget=64, max_model_len=100)
COST = FittedCost((0.5, 0.1, 0.0, 0.0, 0.0, 0.0), 0.0)


def profile(prompt: str, output: str) -> Profile:
    return Profile(Lengths.parse(prompt, "x"), Lengths.parse(output, "x"))


SHORT, LONG = profile("10", "5"), profile("20", "20")


@pytest.fixture(scope="module")
def pace() -> Pace:
    return Pace([SHORT, LONG], CONFIG, COST)


def ends(engine: SharedEngine) -> list[tuple[float, object]]:
    """Until nothing is left: when each shard ends."""
    found: list[tuple[float, object]] = []
    while (then := engine.next_event) < math.inf:
        found += [(then, key) for key in engine.advance(then)]
    return found


def test_a_large_shard_takes_what_its_rows_take(pace: Pace) -> None:
    engine = SharedEngine(pace)
    engine.add("a", 0, 20_000)
    ((end, key),) = ends(engine)
    assert key == "a"
    assert end == pytest.approx(simulate(pace.rows([0], 20_000), CONFIG, COST).seconds, rel=0.01)
    assert engine.busy == pytest.approx(end)


def test_a_small_shard_alone_ends_no_later_than_it_would(pace: Pace) -> None:
    engine = SharedEngine(pace)
    engine.add("a", 1, 3)
    assert ends(engine) == [(pytest.approx(simulate(pace.rows([1], 3), CONFIG, COST).seconds), "a")]


def test_shards_share_the_engine_row_by_row(pace: Pace) -> None:
    engine = SharedEngine(pace)
    engine.add("short", 0, 5000)
    engine.add("long", 1, 5000)
    (first, _), (second, last) = ends(engine)
    rate = pace.flow([0, 1]).rate
    assert first == pytest.approx(10_000 / rate, rel=0.02)
    assert (last, second) == ("long", pytest.approx(first, rel=0.02))
    done = simulate(pace.rows([0, 1], 10_000), CONFIG, COST)
    assert second == pytest.approx(done.seconds, rel=0.02)


def test_what_is_left_goes_on_faster(pace: Pace) -> None:
    engine = SharedEngine(pace)
    engine.add("a", 0, 1000)
    engine.add("b", 0, 3000)
    (first, _), (second, _) = ends(engine)
    rate = pace.flow([0]).rate
    assert first == pytest.approx(2000 / rate, rel=0.05)
    assert second == pytest.approx(4000 / rate, rel=0.05)


def test_time_without_shards_is_not_busy(pace: Pace) -> None:
    engine = SharedEngine(pace)
    assert engine.next_event == math.inf
    assert engine.advance(100.0) == []
    engine.add("a", 0, 100)
    ((end, _),) = ends(engine)
    assert engine.busy == pytest.approx(end - 100.0)


def test_a_mixture_is_known_by_its_shares(pace: Pace) -> None:
    assert pace.flow([0, 0, 1, 1]) is pace.flow([1, 0])
    assert pace.flow([0, 0, 0]) is pace.flow([0])
    assert pace.flow([0, 0, 1]) is not pace.flow([0, 1])
    mixed = pace.flow([0, 1])
    assert pace.flow([1]).rate < mixed.rate < pace.flow([0]).rate
    assert set(mixed.drains) == {0, 1}
    assert mixed.drains[1] > mixed.drains[0] > 0
    assert 0 < mixed.inside <= 2 * CONFIG.max_sequences + 1


def test_rows_that_are_too_long_are_refused_as_they_come() -> None:
    half = Pace([profile("50:10,50.001:300,100:300", "5")], CONFIG, COST)
    whole = Pace([profile("10", "5")], CONFIG, COST)
    assert half.flow([0]).rate == pytest.approx(2 * whole.flow([0]).rate, rel=0.1)
    with pytest.raises(InvalidRequest, match="no row fits"):
        Pace([SHORT, profile("200", "5")], CONFIG, COST)
