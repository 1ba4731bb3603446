"""How large a cache fits a GPU: what is left of it beside the weights and the largest steps."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import replace
from typing import Protocol

import torch

from engine.cache import KVCache
from engine.config import EngineConfig
from engine.devices import torch_device
from engine.dtypes import cache_dtype
from engine.errors import OutOfCache
from engine.models import Model
from engine.probe import probe
from engine.runners import runner_of
from engine.step import Step

log = logging.getLogger(__name__)


class Memory(Protocol):
    """A device's memory, in bytes."""

    def begin(self) -> None:
        """What is allocated at the most is counted from here."""
        ...

    def used(self) -> tuple[int, int, int]:
        """(all there is, what is free, what was allocated at the most since `begin` beyond what was then)."""
        ...


class CudaMemory:
    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._before = 0

    def begin(self) -> None:
        torch.cuda.reset_peak_memory_stats(self._device)
        self._before = torch.cuda.memory_allocated(self._device)

    def used(self) -> tuple[int, int, int]:
        torch.cuda.synchronize(self._device)
        most = torch.cuda.max_memory_allocated(self._device) - self._before
        torch.cuda.empty_cache()
        free, total = torch.cuda.mem_get_info(self._device)
        return total, free, most


def sized(model: Model, config: EngineConfig) -> EngineConfig:
    """The configuration with the size of the cache in it, where that is to be measured: on a GPU, if none is given.

    Raises OutOfCache.
    """
    if config.cache_bytes is not None or config.num_blocks is not None or not config.device.startswith("cuda"):
        return config
    return replace(config, cache_bytes=cache_bytes(model, config, CudaMemory(torch_device(config.device))))


def cache_bytes(model: Model, config: EngineConfig, memory: Memory) -> int:
    """Bytes for keys and values: the part of the memory that the configuration gives away, less what is used already
    (the weights; other processes) and what the largest steps need while they are computed.

    Raises OutOfCache where nothing is left.
    """
    memory.begin()
    _compute_largest(model, config)
    total, free, most = memory.used()
    left = int(config.memory_fraction * total) - (total - free) - most
    sizes = tuple(size / 2**30 for size in (left, total, total - free, most))
    log.info("%.2f GiB for the cache: of %.2f, %.2f are used and steps need %.2f", *sizes)
    if left <= 0:
        found = f"{total - free} of {total} bytes are used and steps need {most}"
        raise OutOfCache(f"memory_fraction={config.memory_fraction} leaves no memory for the cache: {found}")
    return left


def largest_steps(config: EngineConfig, max_model_len: int) -> Iterator[Step]:
    """The most tokens at once, as prompts; the most rows of logits, as drafts; the largest decode."""
    size, budget, sequences = config.block_size, config.token_budget, config.max_sequences
    length = min(budget, max_model_len)
    yield probe(budget // length, length, length, size, logits=False)
    drafted = min(config.max_draft + 1 if config.speculation else 1, budget // sequences, max_model_len)
    yield probe(sequences, drafted, drafted, size)
    yield probe(sequences, 1, 1, size)


@torch.inference_mode()
def _compute_largest(model: Model, config: EngineConfig) -> None:
    """On a cache of its own, as small as will do."""
    shape = model.config
    max_model_len = config.max_model_len or shape.max_position
    num_blocks = -(-min(config.token_budget, max_model_len) // config.block_size)
    sizes = (shape.num_layers, num_blocks, config.block_size, shape.num_kv_heads, shape.head_dim)
    runner = runner_of(model, KVCache(*sizes, cache_dtype(config), torch_device(config.device)), config)
    for step in largest_steps(config, max_model_len):
        runner.largest(runner.run(runner.prepare_step(step)))
    runner.free_memory()
