"""Rotary positions."""

import torch
import triton
import triton.language as tl
from torch import Tensor

HEADS = 8  # heads rotated at a time


def rope(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """reference.rope: x [T, H, D] -> [T, H, D]; cos and sin [T, 1, D], the halves of D the same. x may be a part of
    longer rows."""
    num_tokens, num_heads, head_dim = x.shape
    assert x.stride()[1:] == (head_dim, 1)
    assert cos.is_contiguous()
    assert sin.is_contiguous()
    out = torch.empty((num_tokens, num_heads, head_dim), dtype=x.dtype, device=x.device)
    if num_tokens:
        _rope_kernel[(num_tokens, triton.cdiv(num_heads, HEADS))](
            x,
            cos,
            sin,
            out,
            x.stride(0),
            num_heads,
            D=head_dim,
            BLOCK_HALF=triton.next_power_of_2(head_dim // 2),
            BLOCK_HEADS=HEADS,
            num_warps=4,
        )
    return out


@triton.jit
def _rope_kernel(
    p_x,
    p_cos,
    p_sin,
    p_out,
    stride_x,
    num_heads,
    D: tl.constexpr,
    BLOCK_HALF: tl.constexpr,
    BLOCK_HEADS: tl.constexpr,
):
    """Some heads of one token."""
    i_row = tl.program_id(0).to(tl.int64)
    i_head = tl.program_id(1) * BLOCK_HEADS + tl.arange(0, BLOCK_HEADS)
    o_half = tl.arange(0, BLOCK_HALF)
    m_half = o_half < D // 2
    m_all = (i_head < num_heads)[:, None] & m_half[None, :]
    o_own = i_head[:, None] * D + o_half[None, :]  # [BLOCK_HEADS, BLOCK_HALF]
    b_cos = tl.load(p_cos + i_row * D + o_half, mask=m_half, other=0.0).to(tl.float32)[None, :]
    b_sin = tl.load(p_sin + i_row * D + o_half, mask=m_half, other=0.0).to(tl.float32)[None, :]
    b_first = tl.load(p_x + i_row * stride_x + o_own, mask=m_all, other=0.0)
    b_second = tl.load(p_x + i_row * stride_x + D // 2 + o_own, mask=m_all, other=0.0)
    dtype = b_first.dtype
    b_first, b_second = b_first.to(tl.float32), b_second.to(tl.float32)
    p_own = p_out + i_row * num_heads * D + o_own
    tl.store(p_own, (b_first * b_cos - b_second * b_sin).to(dtype), mask=m_all)
    tl.store(p_own + D // 2, (b_second * b_cos + b_first * b_sin).to(dtype), mask=m_all)
