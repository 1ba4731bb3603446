"""A step that there is no memory for: less at a time, nobody's output changes, and only who is alone with it fails."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from engine import Engine, EngineConfig, FinishReason, Output, Request, SamplingParams
from engine.batch import Batch, Slice
from engine.cache import KVCache
from engine.inputs import Inputs
from engine.limits import CALM, Limits
from engine.sequence import Sequence
from tests.engine import device
from tests.engine.fakes import VOCAB, HashModel, continuation

CONFIG = EngineConfig(num_blocks=120, block_size=4, max_sequences=8, token_budget=64, num_threads=1)


class Narrow(HashModel):
    """Its memory holds so many tokens, or rows of logits, at once."""

    def __init__(self, most_tokens: int = 1000, most_rows: int = 1000) -> None:
        super().__init__()
        self.most_tokens, self.most_rows = most_tokens, most_rows
        self.failures = 0

    def forward(self, inputs: Inputs, cache: KVCache) -> Tensor:
        self._take(inputs.num_tokens > self.most_tokens)
        return super().forward(inputs, cache)

    def logits(self, hidden: Tensor) -> Tensor:
        self._take(len(hidden) > self.most_rows)
        return super().logits(hidden)

    def _take(self, short: bool) -> None:
        if short:
            self.failures += 1
            raise torch.OutOfMemoryError("a fake allocator has no more")


def requests() -> list[Request]:
    """Prompts that share beginnings, some longer than what fits."""
    dice = random.Random(3)
    shared = tuple(dice.randrange(VOCAB) for _ in range(18))
    made = []
    for i in range(24):
        prompt = tuple(dice.randrange(VOCAB) for _ in range(dice.randint(1, 60)))
        made.append(Request(i, shared + prompt if i % 2 else prompt, SamplingParams(max_tokens=dice.randint(2, 20))))
    return made


def run(model: HashModel, config: EngineConfig) -> tuple[dict[object, Output], Engine]:
    engine = Engine(model, config, eos_token_ids=frozenset())
    outputs: dict[object, Output] = {}
    for request in requests():
        engine.add(request)
    while not engine.idle:
        outputs |= {output.id: output for output in engine.step()}
        engine.check()
    assert engine.stats().blocks_used == 0
    return outputs, engine


@pytest.mark.parametrize("where", ["cpu", "interpret"])
@pytest.mark.parametrize(("most_tokens", "most_rows"), [(20, 1000), (5, 1000), (1000, 3), (1000, 1), (10, 2)])
def test_outputs_are_the_models_own(
    where: str, most_tokens: int, most_rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    if where == "interpret":
        pytest.importorskip("triton")
        device.install(monkeypatch)
    model = Narrow(most_tokens, most_rows)
    outputs, engine = run(model, replace(CONFIG, device=where))
    assert model.failures > 0
    assert max(model.batches) <= most_tokens
    assert len(outputs) == 24
    for request in requests():
        assert outputs[request.id].tokens == continuation(request.prompt, request.sampling.max_tokens)
        assert outputs[request.id].finish_reason == FinishReason.LENGTH
    if most_rows == 1000:  # else some was computed and not used
        assert engine.stats().computed_tokens == sum(model.batches)


def test_who_is_alone_with_it_fails_and_the_others_go_on() -> None:
    class Poisoned(Narrow):
        def forward(self, inputs: Inputs, cache: KVCache) -> Tensor:
            self._take(bool((inputs.token_ids == 96).any()))
            return HashModel.forward(self, inputs, cache)

    engine = Engine(Poisoned(), CONFIG, eos_token_ids=frozenset())
    wanted = [Request(i, (i, 5), SamplingParams(max_tokens=3)) for i in (0, 2, 3)]  # 96 follows none
    wanted += [Request("poison", (96, 5), SamplingParams(max_tokens=3))]
    outputs = {output.id: output for output in engine.generate(wanted)}
    engine.check()
    assert engine.idle
    assert outputs["poison"].finish_reason == FinishReason.ERROR
    assert outputs["poison"].error_code == "out_of_memory"
    assert all(outputs[i].tokens == continuation((i, 5), 3) for i in (0, 2, 3))


def test_limits_come_back_by_and_by() -> None:
    limits = Limits(CONFIG)
    batch = Batch(tuple(Slice(Sequence(Request(i, (1,) * 10)), 0, 10) for i in range(4)))
    assert limits.shrink(batch)
    assert (limits.tokens, limits.sequences, limits.num_shortages) == (20, 2, 1)
    for _ in range(CALM - 1):
        limits.ease()
    assert (limits.tokens, limits.sequences) == (20, 2)
    limits.ease()
    assert (limits.tokens, limits.sequences) == (40, 4)
    for _ in range(2 * CALM):
        limits.ease()
    assert (limits.tokens, limits.sequences) == (64, 8)
    assert not limits.shrink(Batch((Slice(Sequence(Request(0, (1,))), 0, 1),)))
