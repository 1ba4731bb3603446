"""The paged-cache ops of reference.py made fast in plain PyTorch: for CPUs first, for any device as a fallback.

Everything that follows from a step's index tensors alone is worked out once, in an AttentionPlan that all layers share.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

# Slices of one token are computed together when their contexts fill the same number of this many blocks. Larger: fewer
# and larger calls, but more masked positions. The bucket depends on the slice alone, never on its neighbours.
BUCKET = 4


@dataclass(frozen=True, slots=True)
class SingleTokens:
    """N slices of one token whose contexts are padded to the same number of positions."""

    rows: Tensor  # [N] int64, rows of the query
    blocks: Tensor  # [N * Hkv * blocks] int64, rows of the cache seen as [blocks * Hkv, block_size * D]
    mask: Tensor  # [N, 1, 1, positions], 0 inside the context and -inf beyond


@dataclass(frozen=True, slots=True)
class Chunk:
    """A slice of several tokens."""

    start: int  # rows [start, stop) of the query
    stop: int
    context: int
    blocks: Tensor | None  # [Hkv * blocks] int64 as above; none: the slice is its whole context, nothing is gathered
    mask: Tensor | None  # [rows, context], 0 and -inf; none: plain causal


@dataclass(frozen=True, slots=True)
class AttentionPlan:
    """How to compute one step's attention. Lives for one step."""

    slots: Tensor  # [T * Hkv] int64, rows of the cache seen as [blocks * Hkv * block_size, D]
    singles: tuple[SingleTokens, ...]
    chunks: tuple[Chunk, ...]

    @classmethod
    def of(
        cls,
        slots: Tensor,
        block_tables: Tensor,
        query_starts: Tensor,
        context_lengths: Tensor,
        cache_shape: torch.Size,
        dtype: torch.dtype,
    ) -> AttentionPlan:
        """Plan for the index tensors of reference.paged_attention and .write_cache; `dtype` is the query's."""
        _, num_kv_heads, block_size, _ = cache_shape
        starts, contexts = query_starts.tolist(), context_lengths.tolist()
        heads = torch.arange(num_kv_heads, device=slots.device)
        grouped: dict[int, list[int]] = defaultdict(list)
        chunks = []
        for i_slice, context in enumerate(contexts):
            start, stop = starts[i_slice], starts[i_slice + 1]
            num_blocks = -(-context // block_size)
            if stop - start == 1:
                grouped[-(-num_blocks // BUCKET) * BUCKET].append(i_slice)
            elif stop - start == context:
                chunks.append(Chunk(start, stop, context, None, None))
            else:
                blocks = block_tables[i_slice, :num_blocks].long()
                rows = blocks[None, :] * num_kv_heads + heads[:, None]
                mask = _causal_mask(stop - start, context, dtype, slots.device)
                chunks.append(Chunk(start, stop, context, rows.flatten(), mask))
        singles = tuple(
            _single_tokens(members, width, block_tables, query_starts, context_lengths, heads, block_size, dtype)
            for width, members in sorted(grouped.items())
        )
        blocks, offsets = slots // block_size, slots % block_size
        cache_rows = (blocks[:, None] * num_kv_heads + heads) * block_size + offsets[:, None]
        return cls(cache_rows.flatten(), singles, tuple(chunks))


def _causal_mask(rows: int, context: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Mask [rows, context] of the last `rows` positions of a context."""
    mask = torch.full((rows, context), -torch.inf, dtype=dtype, device=device)
    return mask.triu_(context - rows + 1)


def _single_tokens(
    members: list[int],
    width: int,
    block_tables: Tensor,
    query_starts: Tensor,
    context_lengths: Tensor,
    heads: Tensor,
    block_size: int,
    dtype: torch.dtype,
) -> SingleTokens:
    """Lay `members` (slice numbers) out over `width` blocks. A short table repeats its last block, which is masked."""
    device = block_tables.device
    slices = torch.tensor(members, device=device)
    contexts = context_lengths[slices].long()[:, None]  # [N, 1]
    columns = torch.arange(width, device=device).minimum((contexts - 1) // block_size)  # [N, width]
    blocks = block_tables[slices].long().gather(1, columns)  # [N, width]
    rows = blocks[:, None, :] * len(heads) + heads[None, :, None]  # [N, Hkv, width]
    beyond = torch.arange(width * block_size, device=device) >= contexts
    mask = torch.zeros(beyond.shape, dtype=dtype, device=device).masked_fill_(beyond, -torch.inf)
    return SingleTokens(query_starts[slices].long(), rows.flatten(), mask[:, None, None, :])


def write_cache(key: Tensor, value: Tensor, key_cache: Tensor, value_cache: Tensor, plan: AttentionPlan) -> None:
    """reference.write_cache at the plan's slots: key and value [T, Hkv, D] go into the caches, in place."""
    head_dim = key.shape[-1]
    key_cache.view(-1, head_dim).index_copy_(0, plan.slots, key.reshape(-1, head_dim))
    value_cache.view(-1, head_dim).index_copy_(0, plan.slots, value.reshape(-1, head_dim))


def paged_attention(
    query: Tensor, key: Tensor, value: Tensor, key_cache: Tensor, value_cache: Tensor, plan: AttentionPlan, scale: float
) -> Tensor:
    """reference.paged_attention of the plan's slices -> [T, H, D].

    `key` and `value` [T, Hkv, D] are this step's own, already in the cache: a slice that is its whole context reads
    them instead. The caches must hold finite numbers even where nothing was written: a masked NaN is still a NaN.
    """
    out = torch.empty_like(query, memory_format=torch.contiguous_format)
    for group in plan.singles:
        out.index_copy_(0, group.rows, _attend_singles(query, key_cache, value_cache, group, scale))
    for chunk in plan.chunks:
        rows = slice(chunk.start, chunk.stop)
        if chunk.blocks is None:
            # [1, Hkv, rows, D]
            own_key, own_value = (part[rows].transpose(0, 1)[None] for part in (key, value))
        else:
            own_key, own_value = (
                _gather(cache, chunk.blocks, 1)[:, :, : chunk.context] for cache in (key_cache, value_cache)
            )
        attended = F.scaled_dot_product_attention(
            query[rows].transpose(0, 1)[None],
            own_key,
            own_value,
            attn_mask=chunk.mask,
            is_causal=chunk.mask is None,
            scale=scale,
            enable_gqa=True,
        )
        out[rows] = attended[0].transpose(0, 1)
    return out


def _gather(cache: Tensor, blocks: Tensor, num_slices: int) -> Tensor:
    """Copy whole (block, head) rows of the cache out -> [slices, Hkv, positions, D], already in attention's order."""
    _, num_kv_heads, _, head_dim = cache.shape
    return cache.flatten(0, 1).flatten(1).index_select(0, blocks).view(num_slices, num_kv_heads, -1, head_dim)


def _attend_singles(query: Tensor, key_cache: Tensor, value_cache: Tensor, group: SingleTokens, scale: float) -> Tensor:
    """Attention of N single tokens -> [N, H, D]. The query heads of one key/value head stand in for query rows."""
    num_slices, num_kv_heads = group.rows.shape[0], key_cache.shape[1]
    rows = query.index_select(0, group.rows)  # [N, H, D]
    attended = F.scaled_dot_product_attention(
        rows.view(num_slices, num_kv_heads, -1, rows.shape[-1]),
        _gather(key_cache, group.blocks, num_slices),
        _gather(value_cache, group.blocks, num_slices),
        attn_mask=group.mask,
        scale=scale,
    )
    return attended.reshape(rows.shape)
