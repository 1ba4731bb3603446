"""Tensor parallelism: two processes over gloo give the tokens of one."""

from __future__ import annotations

import multiprocessing
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from engine import Engine, EngineConfig, Format, InvalidRequest, Output, Request, SamplingParams, load
from engine.drafter import ForcedDrafter, PromptDrafter, Speculation, StepCosts
from engine.models import load_model
from engine.parallel import Team
from engine.ranks import Ranks
from tests.engine import tiny_models
from tests.engine.grammar.languages import END, RECORD, grammars, texts, tokenizer, vocab_size

BACKEND = grammars()
FREE = StepCosts(((1, 1.0), (1000, 1.001)))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Tied embeddings, a bias on queries, keys and values."""
    path: Path = tmp_path_factory.mktemp("qwen2")
    tiny_models.make("qwen2", vocab_size=vocab_size()).save_pretrained(path)
    tokenizer().save(str(path / "tokenizer.json"))
    return path


def requests() -> list[Request]:
    made = [
        Request(i, tuple((7 * i + 3 * j) % vocab_size() for j in range(3 + 5 * i)), SamplingParams(max_tokens=12))
        for i in range(12)
    ]
    made += [
        Request(f"record {i}", (i, 9), SamplingParams(max_tokens=30), format=Format.schema(RECORD)) for i in range(3)
    ]
    sampled = SamplingParams(temperature=1.0, top_p=0.9, seed=5, max_tokens=12)
    # Beginnings that end within a block: they are copied on both ranks.
    made += [Request(f"shared {i}", (*range(20, 32), i), SamplingParams(max_tokens=12)) for i in range(8)]
    return [*made, Request("sampled", (4, 4), sampled), Request("labels", (6,), choices=((5, 6, 7), (5, 8)))]


def run(folder: Path, size: int) -> dict[object, Output]:
    config = EngineConfig(
        max_sequences=5, token_budget=40, num_blocks=60, block_size=8, num_threads=1, tensor_parallel=size
    )
    team = Team(folder, config) if size > 1 else None
    ranks = None if team is None else team.ranks
    engine = Engine(
        load_model(folder, use_native=False, ranks=ranks),
        config,
        eos_token_ids=frozenset({END}),
        token_bytes=texts(),
        grammars=BACKEND,
        speculation=Speculation([ForcedDrafter(BACKEND), PromptDrafter()], lambda: FREE),
        team=team,
    )
    try:
        outputs = {output.id: output for output in engine.generate(requests())}
        engine.check()
        assert sum(drafter.accepted for drafter in engine.stats().drafts) > 0
    finally:
        engine.close()
    return outputs


def test_two_processes_give_the_tokens_of_one(folder: Path) -> None:
    one, two = run(folder, 1), run(folder, 2)
    assert len(one) == 25
    assert {i: output.tokens for i, output in two.items()} == {i: output.tokens for i, output in one.items()}
    assert two["labels"].choice_logprobs == pytest.approx(one["labels"].choice_logprobs, abs=1e-4)
    assert not torch.distributed.is_initialized()


def test_the_parts_of_all_ranks_are_the_model(folder: Path) -> None:
    """Without processes: the partial products of two parts, summed, and every tensor in its place."""
    whole = load_model(folder, use_native=False)
    parts = [load_model(folder, use_native=False, ranks=Ranks(rank, 2)) for rank in range(2)]
    assert [part.config.num_heads for part in parts] == [whole.config.num_heads // 2] * 2
    assert [part.config.num_kv_heads for part in parts] == [whole.config.num_kv_heads // 2] * 2
    layers = [model.weights.layers[1] for model in (whole, *parts)]  # type: ignore[attr-defined]
    x = torch.randn(3, layers[0].down.shape[1])
    halves = x.chunk(2, dim=1)
    product = sum(half @ layer.down.T for half, layer in zip(halves, layers[1:], strict=True))
    torch.testing.assert_close(product, x @ layers[0].down.T, atol=1e-5, rtol=1e-5)


def test_load_starts_the_other_rank(folder: Path) -> None:
    """And a configuration that fails ends it again."""
    config = EngineConfig(num_blocks=60, num_threads=1, tensor_parallel=2)
    engine = load(folder, config).engine
    (output,) = engine.generate([requests()[2]])
    engine.close()
    assert output.tokens == run(folder, 1)[2].tokens
    with pytest.raises(InvalidRequest, match="max_model_len"):
        load(folder, replace(config, max_model_len=10**6))
    assert not torch.distributed.is_initialized()
    assert multiprocessing.active_children() == []


def test_a_model_that_cannot_be_split(tmp_path: Path) -> None:
    tiny_models.make("qwen3").save_pretrained(tmp_path)
    with pytest.raises(InvalidRequest, match="4 query heads, 1 key/value heads and 96 features") as caught:
        load_model(tmp_path, ranks=Ranks(0, 2))
    assert caught.value.field == "tensor_parallel"
