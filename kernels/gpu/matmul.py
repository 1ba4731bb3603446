"""Products in fp8 and int8. Those in bf16 are cuBLAS's own, by torch.nn.functional.linear."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels import reference


def fp8_linear(values: Tensor, scales: Tensor, weight: Tensor, weight_scales: Tensor, dtype: torch.dtype) -> Tensor:
    """reference.fp8_linear by cuBLAS, where there is a GPU; it takes multiples of 16 features, and bf16 as `dtype`."""
    if not values.is_cuda:
        return reference.fp8_linear(values, scales, weight, weight_scales, dtype)
    return torch._scaled_mm(values, weight.t(), scales, weight_scales.t(), out_dtype=dtype)


def int8_linear(values: Tensor, scales: Tensor, weight: Tensor, weight_scales: Tensor, dtype: torch.dtype) -> Tensor:
    """Rows [T, in] int8 with scales [T, 1] times the transpose of weight [out, in] int8 with scales [out, 1].

    -> [T, out] of `dtype`. As kernels.quantised.int8_linear after its rows are quantised: products and sums are exact.
    """
    assert values.is_contiguous()
    assert weight.is_contiguous()
    num_rows, inputs = values.shape
    outputs = weight.shape[0]
    out = torch.empty((num_rows, outputs), dtype=dtype, device=values.device)
    rows, columns, warps = (16, 64, 4) if num_rows <= 16 else (64, 128, 4) if num_rows <= 64 else (128, 128, 8)
    if num_rows:
        _int8_kernel[(triton.cdiv(num_rows, rows), triton.cdiv(outputs, columns))](
            values,
            scales,
            weight,
            weight_scales,
            out,
            num_rows,
            outputs,
            inputs,
            ROWS=rows,
            COLUMNS=columns,
            DEPTH=DEPTH,
            num_warps=warps,
            num_stages=3,
        )
    return out


DEPTH = 128  # inputs at a time


@triton.jit
def _int8_kernel(
    p_x,
    p_scales,
    p_weight,
    p_weight_scales,
    p_out,
    num_rows,
    outputs,
    inputs,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr,
):
    """One tile of outputs, over all inputs."""
    o_row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    o_column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    m_row, m_column = o_row < num_rows, o_column < outputs
    o_depth = tl.arange(0, DEPTH)
    p_own = p_x + o_row.to(tl.int64)[:, None] * inputs + o_depth[None, :]
    p_other = p_weight + o_column.to(tl.int64)[:, None] * inputs + o_depth[None, :]
    b_sum = tl.zeros([ROWS, COLUMNS], tl.int32)
    for i_depth in range(0, inputs, DEPTH):
        m_depth = i_depth + o_depth < inputs
        b_x = tl.load(p_own + i_depth, mask=m_row[:, None] & m_depth[None, :], other=0)  # [ROWS, DEPTH]
        b_weight = tl.load(p_other + i_depth, mask=m_column[:, None] & m_depth[None, :], other=0)  # [COLUMNS, DEPTH]
        b_sum = tl.dot(b_x, tl.trans(b_weight), acc=b_sum, out_dtype=tl.int32)
    b_scales = tl.load(p_scales + o_row, mask=m_row, other=0.0)
    b_weight_scales = tl.load(p_weight_scales + o_column, mask=m_column, other=0.0)
    b_out = b_sum.to(tl.float32) * (b_scales[:, None] * b_weight_scales[None, :])
    o_out = o_row.to(tl.int64)[:, None] * outputs + o_column[None, :]
    tl.store(p_out + o_out, b_out.to(p_out.dtype.element_ty), mask=m_row[:, None] & m_column[None, :])
