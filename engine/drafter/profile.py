"""Measures StepCosts on the machine at hand."""

from __future__ import annotations

import logging
import time

import torch

from engine.cache import KVCache
from engine.config import EngineConfig
from engine.devices import torch_device
from engine.drafter.costs import StepCosts
from engine.dtypes import cache_dtype
from engine.inputs import Inputs
from engine.models import Model
from engine.runner import ModelRunner

log = logging.getLogger(__name__)
SIZES = (1, 4, 16, 64, 256)  # tokens of the measured steps
CONTEXT = 256  # tokens that each row sees
DRAFTED = (16, 4)  # slices and tokens of each, to see what a draft costs beyond its tokens
REPEATS = 3  # at most; the fastest counts
ENOUGH_SECONDS = 0.15  # a step that has taken so long altogether is not repeated


def measure(model: Model, engine: EngineConfig) -> StepCosts:
    """Time steps of up to 256 tokens, logits included, on a small cache of their own. Takes about as long as 400 tokens
    of a prompt: on a slow machine, where they take seconds, every size but the smallest is run once."""
    config, block_size, device = model.config, engine.block_size, torch_device(engine.device)
    context = min(CONTEXT, config.max_position)
    num_blocks = -(-context // block_size)
    cache = KVCache(
        config.num_layers, num_blocks, block_size, config.num_kv_heads, config.head_dim, cache_dtype(engine), device
    )

    runner = ModelRunner(model, cache)

    def seconds(num_slices: int, length: int) -> float:
        inputs = _inputs(num_slices, length, context, block_size, num_blocks, device)
        times: list[float] = []
        while len(times) < REPEATS and sum(times) < ENOUGH_SECONDS:
            start = time.perf_counter()
            runner.largest(runner.run(inputs))[1].tolist()
            times.append(time.perf_counter() - start)
        return min(times)

    began = time.perf_counter()
    with torch.inference_mode():
        points: list[tuple[int, float]] = []
        for size in SIZES:
            if size <= max(engine.token_budget, 4):
                # More work cannot take less time: where it seems to, the machine was disturbed.
                points.append((size, max(seconds(size, 1), points[-1][1] * 1.001 if points else 0.0)))
        num_slices, length = DRAFTED
        drafted = seconds(num_slices, length)
        single = dict(points).get(num_slices * length)
    log.info("what steps cost was measured in %.2f s", time.perf_counter() - began)
    return StepCosts(tuple(points), max(drafted - single, 0.0) / num_slices if single is not None else 0.0)


def _inputs(
    num_slices: int, length: int, context: int, block_size: int, num_blocks: int, device: torch.device
) -> Inputs:
    """Slices of `length` tokens at the end of a context, which all share the same blocks: only the time counts."""
    positions = torch.arange(context - length, context).repeat(num_slices)
    return Inputs(
        token_ids=torch.zeros_like(positions).to(device),
        positions=positions.to(device),
        slots=positions.to(device),  # the blocks are in order, so a position is its own slot
        query_starts=torch.arange(0, num_slices * length + 1, length, dtype=torch.int32, device=device),
        context_lengths=torch.full((num_slices,), context, dtype=torch.int32, device=device),
        block_tables=torch.arange(num_blocks, dtype=torch.int32, device=device).repeat(num_slices, 1),
        logit_rows=torch.arange(num_slices * length, device=device),
    )
