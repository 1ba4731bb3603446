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
from engine.models import Model
from engine.probe import probe
from engine.runner import Runner
from engine.runners import runner_of

log = logging.getLogger(__name__)
SIZES = (1, 4, 16, 64, 256)  # tokens of the measured steps
CONTEXT = 256  # tokens that each row sees
DRAFTED = (16, 4)  # slices and tokens of each, to see what a draft costs beyond its tokens
REPEATS = 3  # at most; the fastest counts
ENOUGH_SECONDS = 0.15  # a step that has taken so long altogether is not repeated


def measure(model: Model, engine: EngineConfig) -> StepCosts:
    """Time steps on a small cache of their own."""
    shape, size, device = model.config, engine.block_size, torch_device(engine.device)
    context = min(CONTEXT, engine.max_model_len or shape.max_position)
    cache = KVCache(
        shape.num_layers, -(-context // size), size, shape.num_kv_heads, shape.head_dim, cache_dtype(engine), device
    )
    return measure_with(runner_of(model, cache, engine), context, engine)


@torch.inference_mode()
def measure_with(runner: Runner, context: int, engine: EngineConfig) -> StepCosts:
    """Time steps of up to 256 tokens, logits included, in the first `context` tokens of the runner's cache, in which
    nothing may be yet. Takes about as long as 400 tokens of a prompt: on a slow machine, where they take seconds, every
    size but the smallest is run once."""

    def seconds(num_slices: int, length: int) -> float:
        step = probe(num_slices, length, context, engine.block_size)
        if engine.device.startswith("cuda"):
            runner.largest(runner.run(runner.prepare_step(step)))  # compiles, and captures a graph
        times: list[float] = []
        while len(times) < REPEATS and sum(times) < ENOUGH_SECONDS:
            start = time.perf_counter()
            runner.largest(runner.run(runner.prepare_step(step)))[1].tolist()
            times.append(time.perf_counter() - start)
        return min(times)

    began = time.perf_counter()
    points: list[tuple[int, float]] = []
    for size in SIZES:
        if size <= max(engine.token_budget, 4):
            # More work cannot take less time: where it seems to, the machine was disturbed.
            points.append((size, max(seconds(size, 1), points[-1][1] * 1.001 if points else 0.0)))
    num_slices, length = DRAFTED
    drafted = seconds(num_slices, min(length, context))
    single = dict(points).get(num_slices * length)
    log.info("what steps cost was measured in %.2f s", time.perf_counter() - began)
    return StepCosts(tuple(points), max(drafted - single, 0.0) / num_slices if single is not None else 0.0)
