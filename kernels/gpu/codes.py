"""Products of rows in fp32 or bf16 with matrices of 4- or 8-bit codes (kernels.blocks), which are read packed and
become numbers in registers.

Codes are exact in bf16, so they are multiplied as they are; a group's scale and minimum come to its sums afterwards,
in fp32. Inputs that meet in one byte lie a whole piece apart, so that low and high halves are operands of their own.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.blocks import PackedBlocks


def packed_linear(x: Tensor, matrix: PackedBlocks) -> Tensor:
    """x [T, in], contiguous, times the transpose of the matrix -> [T, out] in x's format. Sums are in fp32."""
    assert x.is_contiguous()
    num_rows, inputs = x.shape
    outputs = matrix.outputs
    out = torch.empty((num_rows, outputs), dtype=x.dtype, device=x.device)
    rows, columns, warps = (16, 64, 4) if num_rows <= 16 else (64, 64, 4)
    if num_rows:
        grid = (triton.cdiv(num_rows, rows), triton.cdiv(outputs, columns))
        _packed_kernel[grid](
            x,
            matrix.codes,
            matrix.scales,
            matrix.minimums,
            out,
            num_rows,
            outputs,
            inputs,
            BITS=matrix.bits,
            GROUP=matrix.group,
            PIECE=matrix.piece,
            ROWS=rows,
            COLUMNS=columns,
            num_warps=warps,
            num_stages=3,
        )
    return out


@triton.jit
def _add_piece(b_sum, p_x, p_scales, p_minimums, b_codes, i_input, inputs, outputs, o_row, o_column, m_row, m_column,
               GROUP: tl.constexpr, PIECE: tl.constexpr):  # fmt: skip
    """b_sum [ROWS, COLUMNS] with the products of the inputs from i_input on; b_codes [COLUMNS, PIECE] are theirs."""
    o_input = i_input + tl.arange(0, PIECE)
    m_x = m_row[:, None] & (o_input < inputs)[None, :]
    b_x = tl.load(p_x + o_row.to(tl.int64)[:, None] * inputs + o_input[None, :], mask=m_x, other=0.0)  # [ROWS, PIECE]
    o_scale = (i_input // GROUP) * outputs + o_column
    b_scales = tl.load(p_scales + o_scale, mask=m_column, other=0.0)  # [COLUMNS]
    b_minimums = tl.load(p_minimums + o_scale, mask=m_column, other=0.0)
    b_product = tl.dot(b_x, tl.trans(b_codes.to(b_x.dtype)), input_precision="ieee")
    b_total = tl.sum(b_x.to(tl.float32), 1)  # [ROWS]
    return b_sum + b_product * b_scales[None, :] + b_total[:, None] * b_minimums[None, :]


@triton.jit
def _packed_kernel(
    p_x,
    p_codes,
    p_scales,
    p_minimums,
    p_out,
    num_rows,
    outputs,
    inputs,
    BITS: tl.constexpr,
    GROUP: tl.constexpr,
    PIECE: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """One tile of outputs, over all inputs in order."""
    o_row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    o_column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    m_row, m_column = o_row < num_rows, o_column < outputs
    o_piece = tl.arange(0, PIECE)
    b_sum = tl.zeros([ROWS, COLUMNS], tl.float32)
    STEP: tl.constexpr = PIECE * 8 // BITS
    for i_step in range(tl.cdiv(inputs, STEP)):
        o_codes = (i_step * outputs + o_column).to(tl.int64)[:, None] * PIECE + o_piece[None, :]
        b_codes = tl.load(p_codes + o_codes, mask=m_column[:, None], other=0)  # [COLUMNS, PIECE]
        i_input = i_step * STEP
        if BITS == 8:
            b_sum = _add_piece(b_sum, p_x, p_scales, p_minimums, b_codes, i_input, inputs, outputs, o_row, o_column,
                               m_row, m_column, GROUP, PIECE)  # fmt: skip
        else:
            b_sum = _add_piece(b_sum, p_x, p_scales, p_minimums, b_codes & 15, i_input, inputs, outputs, o_row,
                               o_column, m_row, m_column, GROUP, PIECE)  # fmt: skip
            b_sum = _add_piece(b_sum, p_x, p_scales, p_minimums, b_codes >> 4, i_input + PIECE, inputs, outputs, o_row,
                               o_column, m_row, m_column, GROUP, PIECE)  # fmt: skip
    o_out = o_row.to(tl.int64)[:, None] * outputs + o_column[None, :]
    tl.store(p_out + o_out, b_sum.to(p_out.dtype.element_ty), mask=m_row[:, None] & m_column[None, :])
