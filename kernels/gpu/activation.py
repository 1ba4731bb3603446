"""The gated MLP's activation, alone and with the quantisation of its rows."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.gpu.rows import row_warps, store_quantised

BLOCK = 1024


def silu_and_mul(gate_up: Tensor) -> Tensor:
    """reference.silu_and_mul: gate_up [T, 2 * N], contiguous -> [T, N]."""
    assert gate_up.is_contiguous()
    num_rows, size = gate_up.shape[0], gate_up.shape[1] // 2
    out = torch.empty((num_rows, size), dtype=gate_up.dtype, device=gate_up.device)
    if num_rows:
        _silu_kernel[(num_rows, triton.cdiv(size, BLOCK))](gate_up, out, size, BLOCK=BLOCK, num_warps=4)
    return out


def silu_and_mul_quantised(gate_up: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """silu_and_mul, its rows quantised -> ([T, N] of `dtype`, scales [T, 1] fp32); formats as in norm.py."""
    assert gate_up.is_contiguous()
    num_rows, size = gate_up.shape[0], gate_up.shape[1] // 2
    out = torch.empty((num_rows, size), dtype=dtype, device=gate_up.device)
    scales = torch.empty((num_rows, 1), dtype=torch.float32, device=gate_up.device)
    block = triton.next_power_of_2(size)
    if num_rows:
        _silu_quantised_kernel[(num_rows,)](gate_up, out, scales, SIZE=size, BLOCK=block, num_warps=row_warps(block))
    return out, scales


@triton.jit
def _silu_and_mul(b_gate, b_up):
    """In the format of its arguments, rounded where the reference rounds."""
    b_wide = b_gate.to(tl.float32)
    b_silu = (b_wide / (1.0 + tl.exp(-b_wide))).to(b_gate.dtype)
    return (b_silu.to(tl.float32) * b_up.to(tl.float32)).to(b_gate.dtype)


@triton.jit
def _silu_kernel(p_gate_up, p_out, size, BLOCK: tl.constexpr):
    """A stretch of one row."""
    i_row = tl.program_id(0).to(tl.int64)
    o_own = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    m_own = o_own < size
    b_gate = tl.load(p_gate_up + i_row * 2 * size + o_own, mask=m_own, other=0.0)
    b_up = tl.load(p_gate_up + (i_row * 2 + 1) * size + o_own, mask=m_own, other=0.0)
    tl.store(p_out + i_row * size + o_own, _silu_and_mul(b_gate, b_up), mask=m_own)


@triton.jit
def _silu_quantised_kernel(p_gate_up, p_out, p_scales, SIZE: tl.constexpr, BLOCK: tl.constexpr):
    """One row."""
    i_row = tl.program_id(0).to(tl.int64)
    o_own = tl.arange(0, BLOCK)
    m_own = o_own < SIZE
    b_gate = tl.load(p_gate_up + i_row * 2 * SIZE + o_own, mask=m_own, other=0.0)
    b_up = tl.load(p_gate_up + (i_row * 2 + 1) * SIZE + o_own, mask=m_own, other=0.0)
    b_mixed = _silu_and_mul(b_gate, b_up).to(tl.float32)
    store_quantised(p_out + i_row * SIZE, p_scales + i_row, b_mixed, o_own, m_own)
