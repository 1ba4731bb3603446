"""Measured steps: the simulator's work beside a real engine's time."""

from __future__ import annotations

import itertools

import pytest

from engine.config import EngineConfig
from engine.drafter import Speculation, StepCosts
from engine.drafter.prompt import PromptDrafter
from engine.engine import Engine
from engine.errors import InvalidRequest
from engine.simulation.measure import measure_steps
from tests.engine.fakes import HashModel

CONFIG = EngineConfig(num_blocks=64, max_sequences=6, token_budget=48, max_model_len=64)


def test_every_step_of_the_engine_is_simulated_and_timed() -> None:
    model, ticks = HashModel(vocab_size=300), itertools.count()
    engine = Engine(model, CONFIG, eos_token_ids=frozenset())
    found = measure_steps(engine, CONFIG, seed=1, clock=lambda: float(next(ticks)))
    assert [work.tokens for work in found.works] == model.batches
    assert found.seconds == [1.0] * len(model.batches)
    assert {1, 4, 6} <= {work.sequences for work in found.works if work.tokens == work.sequences}
    assert max(work.tokens for work in found.works) == CONFIG.token_budget
    assert found.cost().seconds(found.works[0]) == pytest.approx(1.0)
    again = measure_steps(engine, CONFIG, seed=1)
    assert again.works == found.works, "what the engine had computed before was of use"


def test_an_engine_that_speculates_is_refused() -> None:
    speculation = Speculation([PromptDrafter()], lambda: StepCosts(((1, 1.0), (2, 2.0))))
    engine = Engine(HashModel(), CONFIG, eos_token_ids=frozenset(), speculation=speculation)
    with pytest.raises(InvalidRequest, match="speculation=True"):
        measure_steps(engine, CONFIG)
