"""Paged attention by what torch brings: to check the kernels by, and where torch's own are preferred."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor


def sdpa_attention(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    block_tables: Tensor,
    query_starts: Sequence[int],
    context_lengths: Sequence[int],
    scale: float,
) -> Tensor:
    """reference.paged_attention, the numbers of slices on the host: keys and values are gathered, slice by slice, and
    given to torch's scaled_dot_product_attention. Costs a copy of all of them, in every layer."""
    out = torch.empty_like(query, memory_format=torch.contiguous_format)
    for i_slice, context in enumerate(context_lengths):
        first, stop = query_starts[i_slice], query_starts[i_slice + 1]
        blocks = block_tables[i_slice, : -(-context // key_cache.shape[2])].long()
        # [blocks, Hkv, block_size, D] -> [1, Hkv, context, D]
        key, value = (
            cache[blocks].transpose(0, 1).flatten(1, 2)[None, :, :context].to(query.dtype)
            for cache in (key_cache, value_cache)
        )
        positions = torch.arange(context, device=query.device)
        seen = positions[None, :] <= positions[context - (stop - first) :, None]
        own = query[first:stop].transpose(0, 1)[None]
        found = F.scaled_dot_product_attention(own, key, value, attn_mask=seen, scale=scale, enable_gqa=True)
        out[first:stop] = found[0].transpose(0, 1)
    return out


def varlen_reason() -> str | None:
    """Why varlen_attention cannot be had from this torch. None: it can, on a GPU."""
    try:
        from torch.nn.attention.varlen import varlen_attn
    except ImportError:
        return f"torch {torch.__version__} has no varlen_attn"
    if "block_table" not in inspect.signature(varlen_attn).parameters:
        return f"varlen_attn of torch {torch.__version__} knows no pages (block_table)"
    return None


def varlen_attention(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    block_tables: Tensor,
    query_starts: Tensor,
    context_lengths: Tensor,
    longest: tuple[int, int],
    scale: float,
) -> Tensor:
    """reference.paged_attention by torch's own paged FlashAttention; `longest`: the most query tokens, and the longest
    context. Contexts are not split, so that a slice's result does not depend on the others."""
    from torch.nn.attention.varlen import varlen_attn

    # Pages are [block_size, Hkv, D] there: the same memory, seen otherwise.
    key, value = key_cache.transpose(1, 2), value_cache.transpose(1, 2)
    options: dict[str, Any] = {
        "seqused_k": context_lengths,
        "block_table": block_tables,
        "enable_gqa": True,
        "num_splits": 1,
    }
    out = varlen_attn(query, key, value, query_starts, None, *longest, scale=scale, window_size=(-1, 0), **options)
    assert isinstance(out, Tensor), "nothing but the result was asked for"
    return out
