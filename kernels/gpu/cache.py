"""Writing keys and values into the paged cache."""

import torch
import triton
import triton.language as tl
from torch import Tensor


def write_cache(
    key: Tensor,
    value: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    slots: Tensor,
    scales: tuple[Tensor, Tensor] | None = None,
) -> None:
    """reference.write_cache, in place: key and value [T, Hkv, D] to slots [T] int64; those below 0 are left out.

    `scales`: two [Hkv] fp32; keys and values are divided by them and cut to what the cache's fp8 can hold.
    """
    num_tokens, num_kv_heads, head_dim = key.shape
    block_size = key_cache.shape[2]
    assert key.stride()[1:] == value.stride()[1:] == (head_dim, 1)
    assert key_cache.is_contiguous()
    assert value_cache.is_contiguous()
    assert (scales is not None) == (key_cache.dtype == torch.float8_e4m3fn)
    key_scales, value_scales = scales if scales is not None else (slots, slots)
    if num_tokens:
        _write_kernel[(num_tokens,)](
            key,
            value,
            key_cache,
            value_cache,
            slots,
            key_scales,
            value_scales,
            key.stride(0),
            value.stride(0),
            key_cache.stride(0),
            HEADS=num_kv_heads,
            BLOCK_HEADS=triton.next_power_of_2(num_kv_heads),
            D=head_dim,
            BLOCK_D=triton.next_power_of_2(head_dim),
            PAGE=block_size,
            SCALED=scales is not None,
            num_warps=4,
        )


@triton.jit
def _write_kernel(
    p_key,
    p_value,
    p_key_cache,
    p_value_cache,
    p_slots,
    p_key_scales,
    p_value_scales,
    stride_key,
    stride_value,
    stride_block,
    HEADS: tl.constexpr,
    BLOCK_HEADS: tl.constexpr,
    D: tl.constexpr,
    BLOCK_D: tl.constexpr,
    PAGE: tl.constexpr,
    SCALED: tl.constexpr,
):
    """One token."""
    i_row = tl.program_id(0).to(tl.int64)
    slot = tl.load(p_slots + i_row).to(tl.int64)
    if slot < 0:
        return
    i_head = tl.arange(0, BLOCK_HEADS)
    o_d = tl.arange(0, BLOCK_D)
    m_all = (i_head < HEADS)[:, None] & (o_d < D)[None, :]
    o_own = i_head[:, None] * D + o_d[None, :]  # [BLOCK_HEADS, BLOCK_D]
    b_key = tl.load(p_key + i_row * stride_key + o_own, mask=m_all)
    b_value = tl.load(p_value + i_row * stride_value + o_own, mask=m_all)
    if SCALED:
        b_key_scale = tl.load(p_key_scales + i_head, mask=i_head < HEADS, other=1.0)
        b_value_scale = tl.load(p_value_scales + i_head, mask=i_head < HEADS, other=1.0)
        b_key = tl.clamp(b_key.to(tl.float32) / b_key_scale[:, None], -448.0, 448.0)
        b_value = tl.clamp(b_value.to(tl.float32) / b_value_scale[:, None], -448.0, 448.0)
    o_cache = slot // PAGE * stride_block + (i_head[:, None] * PAGE + slot % PAGE) * D + o_d[None, :]
    tl.store(p_key_cache + o_cache, b_key.to(p_key_cache.dtype.element_ty), mask=m_all)
    tl.store(p_value_cache + o_cache, b_value.to(p_value_cache.dtype.element_ty), mask=m_all)
