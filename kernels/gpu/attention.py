"""Paged attention: one kernel for short slices (decode, verified drafts), one for long ones (prompts).

The query heads of one key/value head and a slice's tokens are packed into the rows of one tile, so that keys and
values are read once for all of them. A short slice's context is cut into stretches of SPLIT positions that different
programs compute and a second kernel combines by their log-sum-exp (Flash-Decoding, Dao et al. 2023). Which kernel
computes a slice, and how it is cut, follows from the slice alone, so its result does not depend on the batch, to the
bit. What work there is is found out on the device: no launch waits for the host to know the lengths.

Numbers that change from step to step are not specialised on, or Triton would compile again for some of their values.
"""

from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from numpy.typing import NDArray
from torch import Tensor

from kernels.gpu.launch import has_wgmma, num_programs
from kernels.gpu.long_attention import long_kernel
from kernels.gpu.short_attention import combine_kernel, short_kernel

SHORT = 16  # tokens: slices up to this long are cut along their context
SHORT_ROWS = 16  # of a tile of query rows, the smallest that tensor cores take
LONG_ROWS = 64  # the smallest that compiles to Hopper's wgmma
TILE = 64  # positions loaded at a time
SMALL_TILE = 32  # the same for long slices before Hopper, where 64 do not fit the registers
SPLIT = 512  # positions of a stretch: 1.6 % more traffic for the partial results at head dim 128
PLANNED = 1024  # slices planned at a time
LOG2E = 1.4426950408889634


@dataclass(frozen=True, slots=True)
class AttentionPlan:
    """One step's slices and the work that they make. Shared by all layers."""

    slots: Tensor  # [T] int64; below 0: nothing is written
    block_tables: Tensor  # [S, most blocks] int32
    query_starts: Tensor  # [S + 1] int32
    context_lengths: Tensor  # [S] int32
    items: Tensor  # [S + 1] int32, the first piece of work of each short slice, per key/value head
    tiles: Tensor  # [S + 1] int32, the first tile of query rows of each long slice
    partial: Tensor  # [pieces, Hkv, SHORT_ROWS, D] fp32
    log_sums: Tensor  # [pieces, Hkv, SHORT_ROWS] fp32, to base 2
    most_tiles: int  # a bound on the tiles of long slices; 0: there are none
    long_tile: int  # positions that these load at a time
    split: int

    @classmethod
    def of(
        cls,
        slots: Tensor,
        block_tables: Tensor,
        query_starts: Tensor,
        context_lengths: Tensor,
        *,
        num_heads: int,
        num_kv_heads: int,
        head_dim: int,
        most_items: int,
        most_tiles: int,
        split: int = SPLIT,
    ) -> "AttentionPlan":
        """Plan for the index tensors of reference.paged_attention. `bounds` gives the last two sizes."""
        num_slices = context_lengths.shape[0]
        items, tiles = (torch.empty(num_slices + 1, dtype=torch.int32, device=slots.device) for _ in range(2))
        _plan_kernel[(1,)](
            query_starts,
            context_lengths,
            items,
            tiles,
            num_slices,
            GROUP=num_heads // num_kv_heads,
            SHORT=SHORT,
            SHORT_ROWS=SHORT_ROWS,
            LONG_ROWS=LONG_ROWS,
            SPLIT=split,
            BLOCK=PLANNED,
        )
        shape = (most_items, num_kv_heads, SHORT_ROWS)
        partial = torch.empty((*shape, head_dim), dtype=torch.float32, device=slots.device)
        log_sums = torch.empty(shape, dtype=torch.float32, device=slots.device)
        starts = (query_starts, context_lengths, items, tiles)
        long_tile = TILE if has_wgmma() else SMALL_TILE
        return cls(slots, block_tables, *starts, partial, log_sums, most_tiles, long_tile, split)


def bounds(counts: NDArray[Any], contexts: NDArray[Any], group: int, *, split: int = SPLIT) -> tuple[int, int]:
    """(most_items, most_tiles) for slices of counts [S] tokens with contexts [S], `group` query heads per key head."""
    short = counts <= SHORT
    items = -(-counts[short] * group // SHORT_ROWS) * -(-contexts[short] // split)
    tiles = -(-counts[~short] * group // LONG_ROWS)
    return int(items.sum()), int(tiles.sum())


def paged_attention(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    plan: AttentionPlan,
    scale: float,
    scales: tuple[Tensor, Tensor] | None = None,
) -> Tensor:
    """reference.paged_attention of the plan's slices: query [T, H, D] -> [T, H, D].

    `scales`: what the caches' fp8 numbers are multiplied with, two [Hkv] fp32 for keys and values. Rows that belong to
    no slice become 0.
    """
    num_tokens, num_heads, head_dim = query.shape
    _, num_kv_heads, block_size, _ = key_cache.shape
    assert query.stride(1) == head_dim
    assert query.stride(2) == 1
    assert key_cache.is_contiguous()
    assert value_cache.is_contiguous()
    out = torch.empty((num_tokens, num_heads, head_dim), dtype=query.dtype, device=query.device)
    num_slices = plan.context_lengths.shape[0]
    key_scales, value_scales = scales if scales is not None else (plan.log_sums, plan.log_sums)
    tensors = (query, key_cache, value_cache, out, plan.block_tables, plan.query_starts, plan.context_lengths)
    numbers = (scale * LOG2E, num_slices, query.stride(0), key_cache.stride(0), plan.block_tables.stride(0))
    shape = {
        "HEADS": num_kv_heads,
        "GROUP": num_heads // num_kv_heads,
        "D": head_dim,
        "BLOCK_D": max(triton.next_power_of_2(head_dim), 16),
        "PAGE": block_size,
        "SCALED": scales is not None,
    }
    if plan.partial.shape[0]:
        short_kernel[(num_programs(query.device),)](
            *tensors,
            plan.items,
            key_scales,
            value_scales,
            plan.partial,
            plan.log_sums,
            *numbers,
            **shape,
            TILE=TILE,
            ROWS=SHORT_ROWS,
            SPLIT=plan.split,
            num_warps=4,
            num_stages=3,
        )
        combine_kernel[(num_tokens, num_heads)](
            plan.partial,
            plan.log_sums,
            out,
            plan.query_starts,
            plan.context_lengths,
            plan.items,
            num_slices,
            HEADS=num_kv_heads,
            GROUP=num_heads // num_kv_heads,
            D=head_dim,
            BLOCK_D=shape["BLOCK_D"],
            ROWS=SHORT_ROWS,
            SPLIT=plan.split,
            SHORT=SHORT,
            num_warps=1,
        )
    if plan.most_tiles:
        long_kernel[(plan.most_tiles, num_kv_heads)](
            *tensors,
            plan.tiles,
            key_scales,
            value_scales,
            *numbers,
            **shape,
            TILE=plan.long_tile,
            ROWS=LONG_ROWS,
            num_warps=4,
            num_stages=3,
        )
    return out


@triton.jit(do_not_specialize=["num_slices"])
def _plan_kernel(
    p_starts,
    p_contexts,
    p_items,
    p_tiles,
    num_slices,
    GROUP: tl.constexpr,
    SHORT: tl.constexpr,
    SHORT_ROWS: tl.constexpr,
    LONG_ROWS: tl.constexpr,
    SPLIT: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Running sums of the slices' pieces of work and tiles, in one program."""
    items = tl.full((), 0, tl.int32)
    tiles = tl.full((), 0, tl.int32)
    tl.store(p_items, items)
    tl.store(p_tiles, tiles)
    for start in range(0, num_slices, BLOCK):
        i_slice = start + tl.arange(0, BLOCK)
        m_slice = i_slice < num_slices
        b_first = tl.load(p_starts + i_slice, mask=m_slice, other=0)
        b_count = tl.load(p_starts + i_slice + 1, mask=m_slice, other=0) - b_first
        b_context = tl.load(p_contexts + i_slice, mask=m_slice, other=0)
        b_pieces = tl.cdiv(b_count * GROUP, SHORT_ROWS) * tl.cdiv(b_context, SPLIT)
        b_items = tl.where(b_count <= SHORT, b_pieces, 0)
        b_tiles = tl.where(b_count <= SHORT, 0, tl.cdiv(b_count * GROUP, LONG_ROWS))
        tl.store(p_items + 1 + i_slice, items + tl.cumsum(b_items), mask=m_slice)
        tl.store(p_tiles + 1 + i_slice, tiles + tl.cumsum(b_tiles), mask=m_slice)
        items += tl.sum(b_items)
        tiles += tl.sum(b_tiles)
