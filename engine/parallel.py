"""Tensor parallelism: rank 0 has the engine; the others compute the same steps with their part of the model.

What a step is goes over as numbers, from host to host; only partial products travel between devices.
"""

from __future__ import annotations

import multiprocessing
import tempfile
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from engine.batch import Batch
from engine.cache import KVCache
from engine.config import EngineConfig
from engine.errors import InvalidRequest
from engine.grammar.masks import RowMasks
from engine.models import load_model
from engine.ranks import Ranks, broadcast
from engine.runner import Runner
from engine.runners import runner_of
from engine.step import Step

PATIENCE = timedelta(hours=24)  # that a rank waits for the next step: engines may be idle for long
ENDED = torch.zeros(0, dtype=torch.int32)


class Team:
    """The processes of the other ranks, started and led by this one."""

    def __init__(self, path: Path, config: EngineConfig) -> None:
        """Returns when all ranks have met. Raises InvalidRequest when this process leads or is led already."""
        if dist.is_initialized():
            raise InvalidRequest("tensor_parallel", config.tensor_parallel, "this process has such an engine already")
        self.ranks = Ranks(0, config.tensor_parallel)
        self._folder = tempfile.TemporaryDirectory(prefix="nightmill-ranks-")
        meeting = f"file://{self._folder.name}/meeting"
        spawn = multiprocessing.get_context("spawn")
        self._others: list[BaseProcess] = [
            spawn.Process(target=_follow, args=(path, config, rank, meeting), daemon=True)
            for rank in range(1, config.tensor_parallel)
        ]
        for process in self._others:
            process.start()
        self._group = _join(config, 0, meeting)

    def lead(self, runner: Runner) -> Runner:
        """A runner whose steps the others compute too."""
        return _Leader(runner, self._group)

    def close(self) -> None:
        """Let the other ranks end."""
        with suppress(RuntimeError):  # they have ended already, of an error
            broadcast(ENDED, self._group)
        for process in self._others:
            process.join()
        dist.destroy_process_group()
        self._folder.cleanup()


class _Leader:
    """Of each step the others are told; the language-model head is rank 0's alone."""

    def __init__(self, runner: Runner, group: dist.ProcessGroup) -> None:
        self._runner = runner
        self._group = group

    def free_memory(self) -> None:
        self._runner.free_memory()

    def prepare(self, batch: Batch) -> Any:
        return self.prepare_step(Step.of(batch))

    def prepare_step(self, step: Step) -> Any:
        broadcast(_pack(step), self._group)
        return self._runner.prepare_step(step)

    def run(self, prepared: Any) -> Tensor:
        return self._runner.run(prepared)

    def logits(self, hidden: Tensor, masks: RowMasks | None = None) -> Tensor:
        return self._runner.logits(hidden, masks)

    def largest(self, hidden: Tensor, masks: RowMasks | None = None) -> tuple[Tensor, Tensor]:
        return self._runner.largest(hidden, masks)


def rank_device(device: str, rank: int) -> str:
    """Where a rank computes: on a GPU of its own, or on the one CPU."""
    return f"cuda:{rank}" if device.startswith("cuda") else device


def _follow(path: Path, config: EngineConfig, rank: int, meeting: str) -> None:
    """The life of a rank but the first."""
    own = replace(config, device=rank_device(config.device, rank))
    if config.num_threads is not None:
        torch.set_num_threads(config.num_threads)
    group = _join(own, rank, meeting)
    model = load_model(path, own.dtype, own.device, ranks=Ranks(rank, config.tensor_parallel))
    runner = runner_of(model, KVCache.fit(model.config, own), own)
    while len(packed := broadcast(ENDED, group)):
        runner.run(runner.prepare_step(_unpack(packed)))
    dist.destroy_process_group()


def _join(config: EngineConfig, rank: int, meeting: str) -> dist.ProcessGroup:
    """Meet the other ranks. Returns the group in which hosts talk; the default group is that of the devices."""
    on_gpu = config.device.startswith("cuda")
    if on_gpu:
        torch.cuda.set_device(rank_device(config.device, rank))
    backend, size = "nccl" if on_gpu else "gloo", config.tensor_parallel
    dist.init_process_group(backend, init_method=meeting, rank=rank, world_size=size, timeout=PATIENCE)
    group: dist.ProcessGroup = dist.new_group(backend="gloo", timeout=PATIENCE)
    return group


def _pack(step: Step) -> Tensor:
    """A step as one tensor: the numbers of slices, tokens and block columns first."""
    copies = np.array(step.copies, np.int32).ravel()
    sizes = np.array([len(step.context_lengths), len(step.tokens), step.block_tables.shape[1]], np.int32)
    return torch.from_numpy(np.concatenate([sizes, *(part.ravel() for part in step.arrays), copies]))


def _unpack(packed: Tensor) -> Step:
    values = packed.numpy()
    num_slices, num_tokens, width = values[:3].tolist()
    sizes = (num_slices + 1, num_slices, num_slices, num_slices + 1, num_tokens, num_slices, num_slices * width)
    starts, contexts, owned, logit_starts, tokens, rows, tables, copies = np.split(values[3:], np.cumsum(sizes))
    pairs = tuple((int(source), int(target)) for source, target in copies.reshape(-1, 2))
    return Step(starts, contexts, owned, logit_starts, tokens, rows, tables.reshape(num_slices, width), pairs)
