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
SMALL = 48  # blocks: the longest prompt needs 42 of them

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


def sizes(max_sequences: int, prefix_caching: bool, num_blocks: int | None) -> EngineConfig:
    """One thread: with two, every small op waits for both cores, which other processes may hold."""
    return EngineConfig(
        max_sequences=max_sequences,
        prefix_caching=prefix_caching,
        num_blocks=num_blocks,
        token_budget=512,
        num_threads=1,
    )


@pytest.mark.parametrize(("max_sequences", "prefix_caching", "count"), [(1, True, 6), (7, False, 16), (64, True, 16)])
def test_some_prompts(
    model: Model, references: dict[str, Reference], max_sequences: int, prefix_caching: bool, count: int
) -> None:
    config = sizes(max_sequences, prefix_caching, None)
    engine = compare(model, config, dict(list(references.items())[:count]))
    assert engine.stats().preemptions == 0
    assert (engine.stats().cached_tokens > 0) == prefix_caching


@pytest.mark.parametrize(("max_sequences", "prefix_caching"), [(7, False), (64, True)])
def test_some_prompts_with_preemption(
    model: Model, references: dict[str, Reference], max_sequences: int, prefix_caching: bool
) -> None:
    config = sizes(max_sequences, prefix_caching, SMALL)
    engine = compare(model, config, dict(list(references.items())[:12]))
    assert engine.stats().preemptions > 0


@pytest.mark.slow
@pytest.mark.parametrize(("max_sequences", "num_blocks"), [(1, None), (7, None), (64, None), (7, SMALL), (64, SMALL)])
@pytest.mark.parametrize("prefix_caching", [True, False])
def test_all_prompts(
    model: Model, references: dict[str, Reference], max_sequences: int, prefix_caching: bool, num_blocks: int | None
) -> None:
    assert len(references) == 64
    engine = compare(model, sizes(max_sequences, prefix_caching, num_blocks), references)
    assert (engine.stats().preemptions > 0) == (num_blocks is not None)
