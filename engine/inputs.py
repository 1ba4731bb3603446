"""Inputs: a Batch as device tensors. The model reads nothing else."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from engine.batch import Batch
from engine.step import Step


@dataclass(frozen=True, slots=True)
class Inputs:
    """T tokens of S slices, one after the other, without padding.

    Slice s owns the token rows [query_starts[s], query_starts[s + 1]) and, after this step's write, sees the first
    context_lengths[s] positions of its sequence through block_tables[s]. Attention is causal: the row of position p
    sees the positions 0 … p. Some of these may be written by another slice of the same batch (a shared beginning), so
    each layer writes all rows before it reads any.
    """

    token_ids: Tensor  # [T] int64
    positions: Tensor  # [T] int64
    slots: Tensor  # [T] int64, block * block_size + offset: where the token's key and value go
    query_starts: Tensor  # [S + 1] int32
    context_lengths: Tensor  # [S] int32
    block_tables: Tensor  # [S, most blocks] int32, filled up with 0
    logit_rows: Tensor  # [R] int64, the token rows whose logits are wanted, in batch order
    work: tuple[int, int] | None = None  # what kernels.gpu.attention.bounds says; none: not known on the host

    @property
    def num_tokens(self) -> int:
        return self.token_ids.shape[0]

    @classmethod
    def of(cls, batch: Batch, block_size: int, device: torch.device) -> Inputs:
        """The tensors of a batch of at least one slice."""
        return cls.of_step(Step.of(batch), block_size, device)

    @classmethod
    def of_step(cls, step: Step, block_size: int, device: torch.device) -> Inputs:
        counts = np.diff(step.query_starts)
        # Row t of slice s holds position context[s] - count[s] + (t - first row of s).
        before = step.context_lengths - step.query_starts[1:]
        positions = np.arange(len(step.tokens)) + np.repeat(before, counts)
        owners = np.repeat(np.arange(len(counts)), counts)
        blocks = step.block_tables[owners, positions // block_size].astype(np.int64)

        def tensor(values: np.ndarray, dtype: type[np.generic]) -> Tensor:
            return torch.from_numpy(values.astype(dtype, copy=False)).to(device)

        return cls(
            token_ids=tensor(step.tokens, np.int64),
            positions=tensor(positions, np.int64),
            slots=tensor(blocks * block_size + positions % block_size, np.int64),
            query_starts=tensor(step.query_starts, np.int32),
            context_lengths=tensor(step.context_lengths, np.int32),
            block_tables=tensor(step.block_tables, np.int32),
            logit_rows=tensor(np.flatnonzero(positions >= (step.owned - 1)[owners]), np.int64),
        )
