"""Ranks: processes that compute one model together, each with a part of every layer (Shoeybi et al. 2019).

A layer's first matrices are split by rows (heads, features of the MLP), its last ones by columns; the partial products
of these are summed over all ranks. Keys and values are split with the heads.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from engine.errors import InvalidRequest
from engine.models.config import ModelConfig
from engine.models.fusion import Stored

ROWS = ("q_proj", "k_proj", "v_proj", "gate_proj", "up_proj")
COLUMNS = ("o_proj", "down_proj")


class Combine(Protocol):
    def sum(self, partial: Tensor) -> Tensor:
        """The sum of all ranks' tensors, perhaps in place."""
        ...


class Alone:
    """One process has it all."""

    def sum(self, partial: Tensor) -> Tensor:
        return partial


@dataclass(frozen=True, slots=True)
class Ranks:
    """One of `size` processes of an initialised process group."""

    rank: int
    size: int

    def sum(self, partial: Tensor) -> Tensor:
        dist.all_reduce(partial)
        return partial

    def part_of(self, config: ModelConfig) -> ModelConfig:
        """What of a model each rank has. Raises InvalidRequest where it cannot be split evenly."""
        counts = (config.num_heads, config.num_kv_heads, config.intermediate_size)
        if any(count % self.size for count in counts):
            heads, kv_heads, features = counts
            sizes = f"{heads} query heads, {kv_heads} key/value heads and {features} features"
            raise InvalidRequest("tensor_parallel", self.size, f"does not divide the model's {sizes}")
        own_heads, own_kv_heads, own_features = (count // self.size for count in counts)
        return replace(config, num_heads=own_heads, num_kv_heads=own_kv_heads, intermediate_size=own_features)

    def part(self, name: str, tensor: Stored) -> Stored:
        """This rank's part of a checkpoint's tensor: all of it where it is not split."""
        module = name.split(".")[-2]
        if module in ROWS:
            return tensor.chunk(self.size, dim=0)[self.rank]
        if module in COLUMNS:
            return tensor.chunk(self.size, dim=1)[self.rank]
        return tensor


def broadcast(values: Tensor, group: dist.ProcessGroup) -> Tensor:
    """Rank 0's tensor of whole numbers [N] int32; the others give any tensor."""
    size = torch.tensor([values.shape[0]])
    dist.broadcast(size, 0, group)
    sent = values if dist.get_rank() == 0 else torch.empty(int(size), dtype=torch.int32)
    dist.broadcast(sent, 0, group)
    return sent
