"""Inputs: a Batch as device tensors. The model reads nothing else."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from engine.batch import Batch


@dataclass(frozen=True, slots=True)
class Inputs:
    """T tokens of S slices, one after the other, without padding.

    Slice s owns the token rows [query_starts[s], query_starts[s + 1]) and, after this step's write, sees the first
    context_lengths[s] positions of its sequence through block_tables[s]. Attention is causal: the row of position p
    sees the positions 0 … p.
    """

    token_ids: Tensor  # [T] int64
    positions: Tensor  # [T] int64
    slots: Tensor  # [T] int64, block * block_size + offset: where the token's key and value go
    query_starts: Tensor  # [S + 1] int32
    context_lengths: Tensor  # [S] int32
    block_tables: Tensor  # [S, most blocks] int32, filled up with 0
    logit_rows: Tensor  # [R] int64, the token rows whose logits are wanted, in batch order

    @property
    def num_tokens(self) -> int:
        return self.token_ids.shape[0]

    @classmethod
    def of(cls, batch: Batch, block_size: int, device: torch.device) -> Inputs:
        raise NotImplementedError
