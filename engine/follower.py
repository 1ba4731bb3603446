"""The other ranks of tensor parallelism: how they meet, and what each of them does until the engine ends."""

from __future__ import annotations

import os
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import FileStore, Store  # type: ignore[attr-defined]  # made in C++

from engine.cache import KVCache
from engine.config import EngineConfig
from engine.determinism import make_deterministic
from engine.memory import sized
from engine.models import load_model
from engine.ranks import Ranks, broadcast
from engine.runners import runner_of
from engine.step import Step

IDLE = timedelta(hours=24)  # that a rank waits for the next step: engines may have nothing to do for long
LOADING = timedelta(minutes=30)  # that ranks wait for each other until the first step
STEP = timedelta(minutes=10)  # that a rank waits for another within a step
ENDED = torch.zeros(0, dtype=torch.int32)
HERE, SIZE = "here", "cache_bytes"  # what ranks tell each other before the first step


def rank_device(device: str, rank: int) -> str:
    """Where a rank computes: on a GPU of its own, or on the one CPU."""
    return f"cuda:{rank}" if device.startswith("cuda") else device


def follow(path: Path, config: EngineConfig, rank: int, meeting: str) -> None:
    """The life of a rank but the first. It ends with rank 0's word, or when rank 0 is gone."""
    own = replace(config, device=rank_device(config.device, rank))
    if config.num_threads is not None:
        torch.set_num_threads(config.num_threads)
    store = FileStore(meeting, config.tensor_parallel)
    store.set(f"{HERE} {rank}", "")
    group = join(own, rank, store)
    ranks = Ranks(rank, config.tensor_parallel)
    model = load_model(path, own.dtype, own.device, ranks=ranks, attention=own.attention)
    measured = sized(model, own)
    if measured is not own:
        store.set(f"{SIZE} {rank}", str(measured.cache_bytes))
        store.wait([SIZE], LOADING)
        own = replace(own, cache_bytes=int(store.get(SIZE)))
    runner = runner_of(model, KVCache.fit(model.config, own), own)
    while len(packed := broadcast(ENDED, group)):
        runner.run(runner.prepare_step(unpack(packed)))
    dist.destroy_process_group()


def join(config: EngineConfig, rank: int, store: Store) -> dist.ProcessGroup:
    """Meet the other ranks. Returns the group in which hosts talk; the default group is that of the devices."""
    on_gpu = config.device.startswith("cuda")
    if on_gpu and config.deterministic:
        make_deterministic()
    device = torch.device(rank_device(config.device, rank)) if on_gpu else None
    if device is not None:
        torch.cuda.set_device(device)
        if rank == 0:
            os.environ.setdefault("TORCH_NCCL_ASYNC_ERROR_HANDLING", "0")  # Team says what happened, and ends it
    dist.init_process_group(
        "nccl" if on_gpu else "gloo",
        store=store,
        rank=rank,
        world_size=config.tensor_parallel,
        timeout=STEP,
        device_id=device,  # connects at once, not within the first step
    )
    group: dist.ProcessGroup = dist.new_group(backend="gloo", timeout=IDLE)
    return group


def pack(step: Step) -> Tensor:
    """A step as one tensor: the numbers of slices, tokens and block columns first."""
    copies = np.array(step.copies, np.int32).ravel()
    sizes = np.array([len(step.context_lengths), len(step.tokens), step.block_tables.shape[1]], np.int32)
    return torch.from_numpy(np.concatenate([sizes, *(part.ravel() for part in step.arrays), copies]))


def unpack(packed: Tensor) -> Step:
    values = packed.numpy()
    num_slices, num_tokens, width = values[:3].tolist()
    sizes = (num_slices + 1, num_slices, num_slices, num_slices + 1, num_tokens, num_slices, num_slices * width)
    starts, contexts, owned, logit_starts, tokens, rows, tables, copies = np.split(values[3:], np.cumsum(sizes))
    pairs = tuple((int(source), int(target)) for source, target in copies.reshape(-1, 2))
    return Step(starts, contexts, owned, logit_starts, tokens, rows, tables.reshape(num_slices, width), pairs)
