"""Questions: from lengths and a sample to the time of a whole job."""

from __future__ import annotations

import random
import statistics
from dataclasses import replace

import pytest

from engine.config import EngineConfig
from engine.errors import InvalidRequest
from engine.simulation import FittedCost
from engine.simulation.lengths import Lengths
from engine.simulation.question import Question, answer

CONFIG = EngineConfig(num_blocks=400, max_sequences=8, token_budget=64, max_model_len=100)
COST = FittedCost((0.5, 1.0, 0.0, 0.0, 0.0, 0.0), 0.0)
TEN, FIVE = Lengths.parse("10", "x"), Lengths.parse("5", "x")


def test_a_job_that_is_simulated_whole_takes_what_it_takes() -> None:
    found = answer(Question(rows=100, prompt=TEN, output=FIVE), CONFIG, COST)
    assert not found.extrapolated
    assert found.seconds == found.simulated_seconds == found.full_rate_seconds
    assert found.rows_per_second == pytest.approx(100 / found.seconds)
    assert found.prompt_tokens_per_second == pytest.approx(1000 / found.seconds)
    assert found.output_tokens_per_second == pytest.approx(500 / found.seconds)
    assert sum(found.shares.values()) == pytest.approx(1.0)
    assert found.bound == "products"


def test_a_large_job_goes_on_at_the_rate_of_the_samples_middle() -> None:
    whole = answer(Question(rows=40_000, prompt=TEN, output=FIVE, sample_rows=40_000), CONFIG, COST)
    found = answer(Question(rows=40_000, prompt=TEN, output=FIVE, sample_rows=1000), CONFIG, COST)
    assert (found.extrapolated, found.simulated_rows) == (True, 1000)
    assert found.seconds == pytest.approx(whole.seconds, rel=0.01)
    four = answer(Question(rows=40_000, prompt=TEN, output=FIVE, sample_rows=1000, engines=4), CONFIG, COST)
    assert four.seconds == pytest.approx(whole.seconds / 4, rel=0.01)
    assert four.rows_per_second == pytest.approx(4 * whole.rows_per_second, rel=0.01)


def test_rows_that_do_not_fit_are_told() -> None:
    question = Question(rows=10_000, prompt=Lengths.parse("0:10,100:150", "x"), output=FIVE, sample_rows=2000)
    found = answer(question, CONFIG, COST)
    assert found.refused_share == pytest.approx(55 / 140, abs=0.05)
    with pytest.raises(InvalidRequest, match="no row fits"):
        answer(replace(question, prompt=Lengths.parse("200", "x")), CONFIG, COST)


def test_a_small_cache_binds() -> None:
    question = Question(rows=200, prompt=TEN, output=Lengths.parse("60", "x"))
    assert answer(question, CONFIG, COST).starved == 0.0
    found = answer(question, replace(CONFIG, num_blocks=12), COST)
    assert found.starved > 0.9
    assert found.bound == "KV memory"


def test_lengths_are_drawn_between_their_points() -> None:
    dice = random.Random(1)
    assert {FIVE.draw(dice) for _ in range(100)} == {5}
    drawn = [Lengths.parse("0:100,50:200,100:1000", "x").draw(dice) for _ in range(4000)]
    assert 100 <= min(drawn) < 110
    assert 950 < max(drawn) <= 1000
    assert statistics.median(drawn) == pytest.approx(200, rel=0.1)
    clamped = {Lengths.parse("20:10,40:10", "x").draw(dice) for _ in range(100)}
    assert clamped == {10}
    assert {Lengths.of([7]).draw(dice), Lengths.of([7, 7, 7]).draw(dice)} == {7}


@pytest.mark.parametrize("text", ["", "x", "50:", "90:5,50:6", "50:6,90:5", "0:0", "5,6", "-1", "50:1,101:2", "nan"])
def test_lengths_that_are_none_are_refused(text: str) -> None:
    with pytest.raises(InvalidRequest, match="prompt_tokens"):
        Lengths.parse(text, "prompt_tokens")


def test_questions_that_are_none_are_refused() -> None:
    for field, value in (("rows", 0), ("engines", 0), ("shared", -1), ("sample_rows", 5)):
        with pytest.raises(InvalidRequest, match=f"{field}={value}"):
            Question(**{"rows": 1, "prompt": TEN, "output": FIVE, field: value})  # type: ignore[arg-type]
