"""Tensor parallelism: two processes over gloo give the tokens of one."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from engine import (
    Engine,
    EngineConfig,
    Format,
    InvalidRequest,
    Output,
    Request,
    SamplingParams,
    computation,
    load,
    parallel,
)
from engine.drafter import ForcedDrafter, PromptDrafter, Speculation, StepCosts
from engine.drafter.profile import measure_with
from engine.errors import RankFailed
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


def test_steps_are_measured_with_all_ranks(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that speculation knows what verifying costs, and outputs stay what they are."""
    found: list[StepCosts] = []

    def measured(*arguments: Any) -> StepCosts:
        found.append(measure_with(*arguments))
        return FREE  # what was measured may say that drafts do not pay

    monkeypatch.setattr(computation, "measure_with", measured)
    repeating = Request("repeating", (7, 8, 9, 10) * 6, SamplingParams(max_tokens=16))
    config = EngineConfig(num_blocks=60, num_threads=1, speculation=False)
    alone = load(folder, config).engine
    (expected,) = alone.generate([repeating])
    engine = load(folder, replace(config, speculation=True, tensor_parallel=2)).engine
    try:
        (output,) = engine.generate([repeating])
        assert sum(drafter.accepted for drafter in engine.stats().drafts) > 0
    finally:
        engine.close()
    assert output.tokens == expected.tokens
    assert [size for size, _ in found[0].points] == [1, 4, 16, 64, 256]


@pytest.mark.parametrize("busy", [True, False])
def test_a_rank_that_dies_is_named(folder: Path, busy: bool) -> None:
    """Whether a step is under way or not: no hang, a typed error, and nothing left behind."""
    config = EngineConfig(num_blocks=60, num_threads=1, tensor_parallel=2, speculation=False)
    engine = load(folder, config).engine
    (other,) = multiprocessing.active_children()
    assert other.pid is not None
    if busy:
        engine.add(requests()[2])
        engine.step()
    os.kill(other.pid, signal.SIGKILL)
    engine.add(requests()[3])
    with pytest.raises(RankFailed, match=r"rank 1 \(ended by signal 9\)") as caught:
        drain(engine)
    assert caught.value.exit_codes == {1: -signal.SIGKILL}
    engine.close()
    assert not torch.distributed.is_initialized()
    assert multiprocessing.active_children() == []
    assert load(folder, replace(config, tensor_parallel=1)).engine.idle  # this process is fine


def drain(engine: Engine) -> None:
    while not engine.idle:
        engine.step()


def test_a_rank_that_cannot_start(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parallel, "follow", faulty_rank)
    with pytest.raises(RankFailed, match=r"rank 1 \(ended with status 3\)"):
        Team(folder, EngineConfig(tensor_parallel=2))
    assert not torch.distributed.is_initialized()


def faulty_rank(*_: object) -> None:
    sys.exit(3)


def test_the_smallest_cache_of_all_ranks_is_everybodys(folder: Path) -> None:
    """What a rank measures goes through the store that they met in."""
    team = Team(folder, EngineConfig(num_blocks=60, num_threads=1, tensor_parallel=2))
    try:
        config = EngineConfig(tensor_parallel=2)
        assert team.sized(config, lambda given: given) is config  # nothing was to be measured
        team._store.set(f"{parallel.SIZE} 1", "5000")
        assert team.sized(config, lambda given: replace(given, cache_bytes=9000)).cache_bytes == 5000
        assert team._store.get(parallel.SIZE) == b"5000"
    finally:
        team.close()
