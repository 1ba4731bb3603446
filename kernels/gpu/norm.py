"""RMSNorm, with the sum of the residual stream before it and the quantisation of rows after it fused in."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.gpu.rows import row_warps, store_quantised


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """reference.rms_norm over the last dimension of x [..., N], contiguous."""
    return _launch(x, None, weight, eps, None)[0]


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """reference.add_rms_norm of x and residual [T, N] -> (norm, sum), both [T, N]."""
    normed, _, total = _launch(x, residual, weight, eps, None)
    return normed, total


def add_rms_norm_quantised(
    x: Tensor, residual: Tensor | None, weight: Tensor, eps: float, dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor]:
    """(the quantised norm of x + residual [T, N], its scales [T, 1] fp32, x + residual).

    `dtype` is int8 (kernels.quantised.quantise_rows) or float8_e4m3fn (reference.quantise_rows_fp8). Without a
    residual the sum is x itself.
    """
    normed, scales, total = _launch(x, residual, weight, eps, dtype)
    assert scales is not None
    return normed, scales, total


def _launch(
    x: Tensor, residual: Tensor | None, weight: Tensor, eps: float, dtype: torch.dtype | None
) -> tuple[Tensor, Tensor | None, Tensor]:
    assert x.is_contiguous()
    assert residual is None or residual.is_contiguous()
    size = x.shape[-1]
    num_rows = x.numel() // size
    normed = torch.empty(x.shape, dtype=dtype or x.dtype, device=x.device)
    total = torch.empty_like(x) if residual is not None else x
    scales = torch.empty((num_rows, 1), dtype=torch.float32, device=x.device) if dtype is not None else None
    block = triton.next_power_of_2(size)
    if num_rows:
        _norm_kernel[(num_rows,)](
            x,
            residual if residual is not None else x,
            weight,
            normed,
            total,
            scales if scales is not None else x,
            eps,
            SIZE=size,
            BLOCK=block,
            ADDED=residual is not None,
            QUANTISED=dtype is not None,
            num_warps=row_warps(block),
        )
    return normed, scales, total


@triton.jit
def _norm_kernel(
    p_x,
    p_residual,
    p_weight,
    p_normed,
    p_total,
    p_scales,
    eps,
    SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
    ADDED: tl.constexpr,
    QUANTISED: tl.constexpr,
):
    """One row. Roundings to the rows' own format happen where the reference has them."""
    i_row = tl.program_id(0).to(tl.int64)
    o_own = tl.arange(0, BLOCK)
    m_own = o_own < SIZE
    b_x = tl.load(p_x + i_row * SIZE + o_own, mask=m_own, other=0.0)
    dtype = b_x.dtype
    b_wide = b_x.to(tl.float32)
    if ADDED:
        b_wide += tl.load(p_residual + i_row * SIZE + o_own, mask=m_own, other=0.0).to(tl.float32)
        b_total = b_wide.to(dtype)
        tl.store(p_total + i_row * SIZE + o_own, b_total, mask=m_own)
        b_wide = b_total.to(tl.float32)
    scale = tl.rsqrt(tl.sum(b_wide * b_wide, 0) / SIZE + eps)
    b_weight = tl.load(p_weight + o_own, mask=m_own, other=0.0).to(tl.float32)
    b_normed = ((b_wide * scale).to(dtype).to(tl.float32) * b_weight).to(dtype)
    if QUANTISED:
        store_quantised(p_normed + i_row * SIZE, p_scales + i_row, b_normed.to(tl.float32), o_own, m_own)
    else:
        tl.store(p_normed + i_row * SIZE + o_own, b_normed, mask=m_own)
