"""Greedy tokens of SmolLM2-135M equal those of transformers in fp32 (make_greedy_reference.py): at every batch size,
with the prefix cache and without, and while sequences are preempted."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import pytest

from engine import Engine, EngineConfig, Request, SamplingParams
from engine.models import Model, load_model

DATA = Path(__file__).parent / "data"
CLOSE = 100  # in units of 1e-6: below this distance of the two best logits, rounding may decide

pytestmark = [pytest.mark.model, pytest.mark.timeout(1800)]


class Reference(NamedTuple):
    prompt: tuple[int, ...]
    tokens: tuple[int, ...]
    gaps: tuple[int, ...]


@pytest.fixture(scope="module")
def references() -> dict[str, Reference]:
    prompts = json.loads((DATA / "greedy_prompts.json").read_text())["prompts"]
    answers = json.loads((DATA / "greedy_reference.json").read_text())
    return {
        name: Reference(tuple(prompt), tuple(answers[name]["tokens"]), tuple(answers[name]["gaps"]))
        for name, prompt in prompts.items()
    }


@pytest.fixture(scope="module")
def model(demo_model: Path) -> Model:
    return load_model(demo_model)


def compare(model: Model, config: EngineConfig, references: Mapping[str, Reference]) -> Engine:
    """Run all prompts and compare. Differences at a close call are printed, and what follows them is not compared."""
    engine = Engine(model, config, eos_token_ids=frozenset())
    num_tokens = len(next(iter(references.values())).tokens)
    sampling = SamplingParams(max_tokens=num_tokens)
    outputs = engine.generate(Request(name, each.prompt, sampling) for name, each in references.items())
    differing = []
    for output in outputs:
        name = str(output.id)
        reference = references[name]
        assert len(output.tokens) == num_tokens
        pairs = zip(output.tokens, reference.tokens, strict=True)
        first = next((place for place, (own, wanted) in enumerate(pairs) if own != wanted), None)
        if first is not None:
            gap = reference.gaps[first]
            print(
                f"{name} differs at token {first}: {output.tokens[first]} for {reference.tokens[first]}, {gap}e-6 apart"
            )
            if gap >= CLOSE:
                differing.append((name, first, gap))
    assert differing == []
    engine.check()
    return engine


def some(references: Mapping[str, Reference], count: int) -> dict[str, Reference]:
    return dict(list(references.items())[:count])


@pytest.mark.parametrize(("max_sequences", "prefix_caching"), [(1, True), (7, False), (64, True)])
def test_16_prompts(model: Model, references: dict[str, Reference], max_sequences: int, prefix_caching: bool) -> None:
    config = EngineConfig(max_sequences=max_sequences, prefix_caching=prefix_caching, token_budget=512)
    engine = compare(model, config, some(references, 16))
    assert engine.stats().preemptions == 0
    assert (engine.stats().cached_tokens > 0) == prefix_caching


@pytest.mark.parametrize(("max_sequences", "prefix_caching"), [(7, False), (64, True)])
def test_16_prompts_with_preemption(
    model: Model, references: dict[str, Reference], max_sequences: int, prefix_caching: bool
) -> None:
    config = EngineConfig(max_sequences=max_sequences, prefix_caching=prefix_caching, token_budget=512, num_blocks=48)
    engine = compare(model, config, some(references, 16))
    assert engine.stats().preemptions > 0


@pytest.mark.slow
@pytest.mark.parametrize("max_sequences", [1, 7, 64])
@pytest.mark.parametrize("prefix_caching", [True, False])
@pytest.mark.parametrize("num_blocks", [None, 48])
def test_64_prompts(
    model: Model,
    references: dict[str, Reference],
    max_sequences: int,
    prefix_caching: bool,
    num_blocks: int | None,
) -> None:
    config = EngineConfig(max_sequences=max_sequences, prefix_caching=prefix_caching, num_blocks=num_blocks)
    engine = compare(model, config, references)
    assert len(references) == 64
    assert (engine.stats().preemptions > 0) == (num_blocks is not None and max_sequences > 1)
