"""The size of a cache that nobody gave: what the largest steps leave of a device's memory."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from engine import EngineConfig
from engine.cache import DEFAULT_BYTES, KVCache
from engine.errors import InvalidRequest, OutOfCache
from engine.inputs import Inputs
from engine.memory import cache_bytes, sized
from tests.engine.fakes import config

CONFIG = EngineConfig(block_size=4, max_sequences=3, token_budget=40, max_draft=5, num_threads=1)


class Recorder:
    """Computes nothing; notes how many tokens, slices and rows of logits steps have."""

    def __init__(self) -> None:
        self.config = config(max_position=32)
        self.steps: list[tuple[int, int, int]] = []

    def forward(self, inputs: Inputs, cache: KVCache) -> Tensor:
        assert int(inputs.slots.max()) < cache.num_blocks * cache.block_size
        self.steps.append((inputs.num_tokens, len(inputs.context_lengths), len(inputs.logit_rows)))
        return torch.zeros(len(inputs.logit_rows), 1)

    def logits(self, hidden: Tensor) -> Tensor:
        return torch.zeros(len(hidden), self.config.vocab_size)


class FakeMemory:
    def __init__(self, total: int, free: int, most: int) -> None:
        self.numbers = (total, free, most)
        self.began = False

    def begin(self) -> None:
        self.began = True

    def used(self) -> tuple[int, int, int]:
        assert self.began
        return self.numbers


def test_what_is_left_beside_weights_and_steps():
    model = Recorder()
    assert cache_bytes(model, CONFIG, FakeMemory(1000, 700, 150)) == 900 - 300 - 150
    # Prompts of the longest length, drafts of the longest, all logits of them; a decode of all sequences.
    assert model.steps == [(32, 1, 1), (18, 3, 18), (3, 3, 3)]
    model.steps.clear()
    alone = replace(CONFIG, speculation=False, memory_fraction=0.5)
    assert cache_bytes(model, alone, FakeMemory(1000, 700, 150)) == 500 - 300 - 150
    assert model.steps == [(32, 1, 1), (3, 3, 3), (3, 3, 3)]


def test_nothing_is_left():
    with pytest.raises(OutOfCache, match=r"memory_fraction=0.9 .* 800 of 1000 bytes are used and steps need 100"):
        cache_bytes(Recorder(), CONFIG, FakeMemory(1000, 200, 100))


def test_only_a_gpus_memory_is_measured():
    for given in (CONFIG, replace(CONFIG, device="cuda", cache_bytes=9), replace(CONFIG, device="cuda", num_blocks=9)):
        assert sized(Recorder(), given) is given
    block = 2 * 2 * 4 * 4  # keys and values of two features, four tokens, fp32
    assert KVCache.fit(Recorder().config, CONFIG).num_blocks == DEFAULT_BYTES // block


@pytest.mark.parametrize("fraction", [0.0, -1.0, 1.5])
def test_a_fraction_that_is_none(fraction: float):
    with pytest.raises(InvalidRequest, match="memory_fraction"):
        EngineConfig(memory_fraction=fraction)
