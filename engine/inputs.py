"""Inputs: a Batch as device tensors. The model reads nothing else."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain

import numpy as np
import torch
from torch import Tensor

from engine.batch import Batch


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

    @property
    def num_tokens(self) -> int:
        return self.token_ids.shape[0]

    @classmethod
    def of(cls, batch: Batch, block_size: int, device: torch.device) -> Inputs:
        """The tensors of a batch of at least one slice."""
        slices = batch.slices
        stops = np.array([stop for _, _, stop in slices])
        starts = np.array([start for _, start, _ in slices])
        counts = stops - starts
        ends = counts.cumsum()
        # Row t of slice s holds position start[s] + (t - first row of s).
        positions = np.arange(ends[-1]) + np.repeat(stops - ends, counts)
        tables = _block_tables(batch)
        blocks = tables[np.repeat(np.arange(len(slices)), counts), positions // block_size].astype(np.int64)
        own = np.array([len(sequence.tokens) for sequence, _, _ in slices])
        tokens = chain.from_iterable(sequence.known(start, stop) for sequence, start, stop in slices)

        def tensor(values: np.ndarray, dtype: type[np.generic]) -> Tensor:
            return torch.from_numpy(values.astype(dtype, copy=False)).to(device)

        return cls(
            token_ids=tensor(np.fromiter(tokens, np.int64, int(ends[-1])), np.int64),
            positions=tensor(positions, np.int64),
            slots=tensor(blocks * block_size + positions % block_size, np.int64),
            query_starts=tensor(np.concatenate(([0], ends)), np.int32),
            context_lengths=tensor(stops, np.int32),
            block_tables=tensor(tables, np.int32),
            # Slice.num_logits for the whole batch at once.
            logit_rows=tensor(np.flatnonzero(positions >= np.repeat(own - 1, counts)), np.int64),
        )


def _block_tables(batch: Batch) -> np.ndarray:
    """The slices' block tables [S, most blocks] int32, copied row by row without a Python loop over blocks."""
    lengths = np.array([len(sequence.blocks) for sequence, _, _ in batch.slices])
    flat = np.frombuffer(b"".join([sequence.blocks for sequence, _, _ in batch.slices]), np.int32)
    tables = np.zeros((len(lengths), lengths.max()), np.int32)
    tables[np.arange(tables.shape[1]) < lengths[:, None]] = flat
    return tables
