"""A row's output depends on nothing but the row: not on batch, order, memory, cache, chunking, or speculation.

Over 2,000 pairs of a row and a condition, with a real decoder in fp32: the same tokens, log-probabilities to 1e-4.
"""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from engine import Engine, EngineConfig, Format, Output, Request, SamplingParams
from engine.drafter import Drafter, ForcedDrafter, HistoryDrafter, ModelDrafter, PromptDrafter, Speculation, StepCosts
from engine.models import Model, load_model
from tests.engine import tiny_models
from tests.engine.grammar.languages import END, RECORD, grammars, texts, vocab_size

BACKEND = grammars()
FREE = StepCosts(((1, 1.0), (1000, 1.001)))
ROWS = 150
SHARED = tuple(range(20, 60))


@dataclass(frozen=True)
class Condition:
    max_sequences: int = 16
    token_budget: int = 256
    num_blocks: int = 2000
    prefix_caching: bool = True
    reverse: bool = False
    drafters: tuple[str, ...] = ()
    twice: bool = False  # the second time, prefixes are there and outputs known


ALL = ("grammar", "history", "prompt", "model")
CONDITIONS = {
    "small batch": Condition(max_sequences=2),
    "large batch": Condition(max_sequences=150, token_budget=4096),
    "reverse": Condition(reverse=True),
    "small chunks": Condition(token_budget=17),
    "preemption": Condition(num_blocks=60),
    "no prefix cache": Condition(prefix_caching=False),
    "prefix hits": Condition(twice=True),
    "grammar": Condition(drafters=("grammar",)),
    "history": Condition(drafters=("history",), twice=True),
    "prompt": Condition(drafters=("prompt",)),
    "draft model": Condition(drafters=("model",)),
    "all drafters": Condition(drafters=ALL, twice=True),
    "drafts and preemption": Condition(drafters=ALL[:3], num_blocks=60, reverse=True),
    "drafts in small chunks": Condition(drafters=ALL, token_budget=23),
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    folder = tmp_path_factory.mktemp("tiny")
    tiny_models.make("llama", vocab_size=vocab_size()).save_pretrained(folder)
    return load_model(folder)


def requests() -> list[Request]:
    """Every third of them greedy, sampled and structured; with prompts that share beginnings, labels among them."""
    made = []
    for i in range(ROWS):
        prompt = SHARED[: 7 * (i % 6)] + tuple((11 * i + 5 * j * j) % vocab_size() for j in range(1 + i % 13))
        logprobs = 2 if i % 2 else None
        if i % 3 == 0:
            made.append(Request(i, prompt, SamplingParams(max_tokens=24, logprobs=logprobs)))
        elif i % 3 == 1:
            sampling = SamplingParams(temperature=1.0, top_p=0.95, seed=i, max_tokens=24, logprobs=logprobs)
            made.append(Request(i, prompt, sampling))
        elif i % 9 == 2:
            made.append(Request(i, prompt, choices=((5, 6, 7), (5, 6, 8), (9,), (10, 11))))
        else:
            sampling = SamplingParams(temperature=float(i % 2), seed=i, max_tokens=40, logprobs=logprobs)
            made.append(Request(i, prompt, sampling, format=Format.schema(RECORD)))
    return made


def run(model: Model, condition: Condition) -> dict[object, Output]:
    config = EngineConfig(
        max_sequences=condition.max_sequences,
        token_budget=condition.token_budget,
        num_blocks=condition.num_blocks,
        prefix_caching=condition.prefix_caching,
        block_size=8,
        num_threads=1,
    )
    drafters: dict[str, Drafter] = {
        "grammar": ForcedDrafter(BACKEND),
        "history": HistoryDrafter(),
        "prompt": PromptDrafter(),
    }
    if "model" in condition.drafters:
        drafters["model"] = ModelDrafter(model, config, vocab_size=vocab_size(), grammars=BACKEND)
    engine = Engine(
        model,
        config,
        eos_token_ids=frozenset({END}),
        token_bytes=texts(),
        grammars=BACKEND,
        speculation=Speculation([drafters[name] for name in condition.drafters], lambda: FREE)
        if condition.drafters
        else None,
    )
    wanted = requests()
    ordered = wanted[::-1] if condition.reverse else wanted
    outputs = {output.id: output for _ in range(1 + condition.twice) for output in engine.generate(ordered)}
    engine.check()
    stats = engine.stats()
    assert stats.blocks_used == 0
    assert (stats.preemptions > 0) == (condition.num_blocks < 100)
    assert sum(drafter.accepted for drafter in stats.drafts) > 0 or not stats.drafts
    return outputs


@pytest.fixture(scope="module")
def alone(model: Model) -> dict[object, Output]:
    """Every row by itself."""
    return run(model, Condition(max_sequences=1, prefix_caching=False))


@pytest.mark.parametrize("name", list(CONDITIONS))
def test_rows_do_not_depend_on(name: str, model: Model, alone: dict[object, Output]) -> None:
    outputs = run(model, CONDITIONS[name])
    assert {i: output.tokens for i, output in outputs.items()} == {i: output.tokens for i, output in alone.items()}
    for i, output in outputs.items():
        assert output.finish_reason == alone[i].finish_reason
        assert output.num_output_tokens == alone[i].num_output_tokens
        for one, other in zip(output.logprobs or (), alone[i].logprobs or (), strict=True):
            assert one.logprob == pytest.approx(other.logprob, abs=1e-4)
        assert output.choice_logprobs == pytest.approx(alone[i].choice_logprobs, abs=1e-4)


def test_that_is_more_than_two_thousand_pairs() -> None:
    assert ROWS * len(CONDITIONS) > 2000
