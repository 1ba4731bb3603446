"""The sample workload of `nightmill bench`, on an engine with a model of a few lines."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from engine import Engine, EngineConfig
from engine.clock import PARTS
from tests.engine.fakes import HashModel
from tests.worker.fakes import FakeTokenizer
from worker.bench import WORDS_PER_ROW, measure, sample


@pytest.fixture
def model() -> Any:
    config = EngineConfig(max_sequences=4, num_blocks=2000, token_budget=512, num_threads=1)
    engine = Engine(HashModel(vocab_size=300), config, eos_token_ids=frozenset())
    return SimpleNamespace(engine=engine, tokenizer=FakeTokenizer())


def test_the_parts_add_up(model: Any) -> None:
    measure(model, sample(model, 2, 3, salt=1))
    measured = measure(model, sample(model, 6, 3, salt=2))
    assert (measured.rows, measured.output_tokens) == (6, 18)
    prompts = [request.prompt for request in sample(model, 6, 3, salt=2)]
    assert measured.prompt_tokens == sum(map(len, prompts))
    assert 0 < measured.cached_tokens < measured.prompt_tokens  # the question is the same in all
    assert set(measured.parts) == {*PARTS, "tokenise", "detokenise", "other"}
    assert sum(measured.parts.values()) == pytest.approx(measured.seconds)
    assert min(measured.parts.values()) >= 0
    assert measured.host_share == pytest.approx(1 - measured.parts["model"] / measured.seconds)
    assert measured.steps >= 6  # four at a time, three tokens each


def test_the_sample_is_repeatable(model: Any) -> None:
    first, second, other = (list(sample(model, 3, 5, salt=salt)) for salt in (7, 7, 8))
    assert first == second
    assert len({request.prompt for request in [*first, *other]}) == 6
    text = FakeTokenizer().decode(first[0].prompt)
    assert len(text.partition("\n\n")[2].split()) == WORDS_PER_ROW
    assert all(request.sampling.ignore_eos and request.sampling.max_tokens == 5 for request in first)
