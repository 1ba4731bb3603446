"""Random inputs of the kernels' tests."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from kernels.gpu.attention import AttentionPlan, bounds

# One for each format, everywhere: a few units in the last place of sums of unit size.
TOLERANCE = {torch.float32: 2e-5, torch.bfloat16: 1.6e-2}


@dataclass(frozen=True)
class Slices:
    """Slices over a paged cache whose unused parts are NaN."""

    query: Tensor
    key_cache: Tensor
    value_cache: Tensor
    block_tables: Tensor
    query_starts: Tensor
    context_lengths: Tensor

    def plan(self, split: int) -> AttentionPlan:
        num_heads, head_dim = self.query.shape[1:]
        num_kv_heads = self.key_cache.shape[1]
        counts, contexts = self.query_starts.diff().numpy(), self.context_lengths.numpy()
        most_items, most_tiles = bounds(counts, contexts, num_heads // num_kv_heads, split=split)
        return AttentionPlan.of(
            torch.zeros(len(self.query), dtype=torch.int64),
            self.block_tables,
            self.query_starts,
            self.context_lengths,
            num_heads=num_heads,
            num_kv_heads=num_kv_heads,
            head_dim=head_dim,
            most_items=most_items,
            most_tiles=most_tiles,
            split=split,
        )

    def only(self, i_slice: int) -> Slices:
        """One of the slices by itself."""
        first, stop = self.query_starts[i_slice], self.query_starts[i_slice + 1]
        context = self.context_lengths[i_slice : i_slice + 1].clone()
        blocks = self.block_tables[i_slice : i_slice + 1].clone()
        starts = torch.tensor([0, stop - first], dtype=torch.int32)
        own = self.query[first:stop].clone()
        return replace(self, query=own, block_tables=blocks, query_starts=starts, context_lengths=context)


def slices(
    lengths: list[tuple[int, int]],
    *,
    num_heads: int = 4,
    num_kv_heads: int = 2,
    head_dim: int = 32,
    block_size: int = 16,
    dtype: torch.dtype = torch.float32,
    seed: int = 0,
) -> Slices:
    """Slices of (query tokens, context) each, their blocks spread over the cache."""
    generator = torch.Generator().manual_seed(seed)
    counts, contexts = (np.array(part) for part in zip(*lengths, strict=True))
    needed = -(-contexts // block_size)
    order = torch.randperm(int(needed.sum()) + 3, generator=generator).int()
    caches = torch.full((2, len(order), num_kv_heads, block_size, head_dim), torch.nan, dtype=dtype)
    tables = torch.full((len(lengths), int(needed.max())), 10**6, dtype=torch.int32)  # far outside
    taken = 0
    for i_slice, (blocks, context) in enumerate(zip(needed, contexts, strict=True)):
        own = order[taken : taken + blocks]
        taken += blocks
        tables[i_slice, :blocks] = own
        for position in range(context):
            place = (slice(None), own[position // block_size], slice(None), position % block_size)
            caches[place] = torch.randn(2, num_kv_heads, head_dim, generator=generator).to(dtype)
    query = torch.randn(int(counts.sum()), num_heads, head_dim, generator=generator).to(dtype)
    starts = torch.tensor([0, *counts.cumsum()], dtype=torch.int32)
    return Slices(query, caches[0], caches[1], tables, starts, torch.tensor(contexts, dtype=torch.int32))
