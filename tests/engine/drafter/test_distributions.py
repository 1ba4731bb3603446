"""Sampling with drafts has exactly the model's distribution, whichever drafter guesses."""

from __future__ import annotations

import dataclasses
import random
import re
from unittest import mock

import pytest

from engine import Engine, EngineConfig, Format, Request, SamplingParams
from engine.drafter import (
    Drafter,
    ForcedDrafter,
    HistoryDrafter,
    ModelDrafter,
    PromptDrafter,
    Speculation,
    StepCosts,
)
from tests.engine.drafter.tables import Output, TableModel, exact, surprise
from tests.engine.grammar.languages import END, grammars, texts, vocab_size

FREE = StepCosts(((1, 1.0), (1000, 1.001)))
CONFIG = EngineConfig(num_blocks=2000, block_size=4, max_sequences=256, token_budget=2048, num_threads=1)
SMALL = 6  # tokens of the vocabulary of free outputs
BACKEND = grammars()
FORMAT = Format("regex", "x(an|and|dog)[ab]?!")  # type: ignore[arg-type]
LIMIT = 3.5  # standard deviations


def free_model() -> TableModel:
    return TableModel(SMALL, seed=1)


def draws(
    model: TableModel, drafter: Drafter | None, prompt: Output, sampling: SamplingParams, count: int, **options: object
) -> list[Output]:
    speculation = Speculation([drafter], lambda: FREE) if drafter is not None else None
    eos = frozenset({END})
    engine = Engine(model, CONFIG, eos_token_ids=eos, grammars=BACKEND, speculation=speculation)  # type: ignore[arg-type]
    requests = (
        Request(i, prompt, dataclasses.replace(sampling, seed=sampling.seed and sampling.seed + i), **options)  # type: ignore[arg-type]
        for i in range(count)
    )
    # Requests without a seed get one that the engine makes up.
    with mock.patch("engine.admission.secrets.randbits", random.Random(count).getrandbits):
        outputs = {output.id: output.tokens for output in engine.generate(requests)}
    if drafter is not None:
        (stats,) = engine.stats().drafts
        assert stats.proposed > count / 20
        assert 0 < stats.accepted < stats.proposed
    return [outputs[i] for i in range(count)]


def drafter(name: str, model: TableModel) -> Drafter:
    if name == "model":
        disturbed = model.disturbed(9, 0.7)
        backend = BACKEND if model.config.vocab_size == vocab_size() else None
        return ModelDrafter(disturbed, CONFIG, vocab_size=model.config.vocab_size, grammars=backend)  # type: ignore[arg-type]
    made: dict[str, Drafter] = {
        "prompt": PromptDrafter(),
        "history": HistoryDrafter(),
        "grammar": ForcedDrafter(BACKEND),
    }
    return made[name]


PARAMS = {
    "plain": SamplingParams(temperature=1.0, max_tokens=4),
    "narrow": SamplingParams(temperature=1.3, top_k=4, top_p=0.9, min_p=0.02, max_tokens=4),
}


def check_free(name: str, params: str, seed: int | None, count: int) -> None:
    model = free_model()
    sampling = dataclasses.replace(PARAMS[params], seed=seed)
    prompt = (1, 3, 4, 1, 3, 5, 1, 3)
    outputs = draws(model, drafter(name, model), prompt, sampling, count)
    assert surprise(outputs, exact(model, prompt[-1], sampling)) < LIMIT
    if seed is not None:
        assert outputs == draws(model, None, prompt, sampling, count)


@pytest.mark.parametrize("seed", [1, None])
@pytest.mark.parametrize("params", list(PARAMS))
@pytest.mark.parametrize("name", ["prompt", "history", "model"])
def test_free_outputs(name: str, params: str, seed: int | None) -> None:
    check_free(name, params, seed, 2000)


def check_structured(name: str, seed: int | None, count: int) -> None:
    model = TableModel(vocab_size(), seed=2, spread=2.0)
    sampling = SamplingParams(temperature=1.0, max_tokens=12, seed=seed)
    outputs = draws(model, drafter(name, model), (5, 6), sampling, count, format=FORMAT)
    expected = exact(model, 6, sampling, backend=BACKEND, format=FORMAT)
    assert len(expected) == 18
    assert surprise(outputs, expected) < LIMIT
    if seed is not None:
        assert outputs == draws(model, None, (5, 6), sampling, count, format=FORMAT)
    assert all(re.fullmatch(FORMAT.text, b"".join(texts()[token] for token in output).decode()) for output in outputs)


@pytest.mark.parametrize("seed", [1, None])
@pytest.mark.parametrize("name", ["grammar", "history", "model"])
def test_structured_outputs(name: str, seed: int | None) -> None:
    check_structured(name, seed, 1000)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", ["prompt", "history", "model"])
def test_free_outputs_a_hundred_thousand_times(name: str) -> None:
    check_free(name, "plain", None, 100_000)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", ["grammar", "history", "model"])
def test_structured_outputs_a_hundred_thousand_times(name: str) -> None:
    check_structured(name, None, 100_000)
