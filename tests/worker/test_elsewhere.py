"""A plan's job on GPUs that are not here."""

from __future__ import annotations

import pytest

from db.settings import Settings
from engine.simulation import Architecture, SimulatedRequest
from worker.course import Asked
from worker.elsewhere import EFFICIENCY, elsewhere

ROWS = [Asked((SimulatedRequest((7, row, *range(200)), 40),), 40) for row in range(300)]


def test_a_small_model_on_one_of_each() -> None:
    found = {
        each.device: each for each in elsewhere(ROWS, [], 300, 0.0, Architecture.named("llama-3.1-8b"), Settings())
    }
    assert list(found) == ["a100", "h100", "h200"]
    assert {each.count for each in found.values()} == {1}
    assert found["a100"].seconds > found["h100"].seconds > found["h200"].seconds > 0
    for each in found.values():
        # What the host does beside is not in the efficiency, and little.
        assert each.least_seconds == pytest.approx(EFFICIENCY * each.seconds, rel=0.1)


def test_a_larger_model_has_as_many_as_it_needs() -> None:
    found = elsewhere(ROWS, [], 300, 0.0, Architecture.named("llama-3-70b"), Settings())
    assert {each.device: each.count for each in found} == {"a100": 4, "h100": 4, "h200": 2}


def test_a_model_that_fits_none_has_none() -> None:
    settings = Settings(engine_memory_fraction=0.05)
    assert elsewhere(ROWS, [], 300, 0.0, Architecture.named("llama-3-70b"), settings) == []


def test_more_rows_take_longer_and_reading_may_take_longest() -> None:
    shape = Architecture.named("llama-3.1-8b")
    few, many = (elsewhere(ROWS, [], count, 0.0, shape, Settings())[0].seconds for count in (300, 3000))
    assert 5 < many / few < 12
    assert elsewhere(ROWS, [], 300, 1e5, shape, Settings())[0].seconds == 1e5
