"""What the kernels that take a whole row at a time share."""

import triton
import triton.language as tl

WIDE = 8192  # numbers of a row from which on 16 warps share it: 16 numbers a thread keep it in registers


def row_warps(block: int) -> int:
    """Warps for a row padded to `block` numbers."""
    return 16 if block >= WIDE else 8 if block >= 2048 else 4


@triton.jit
def round_to_even(b_x):
    """The nearest whole number, of two the even one, for |x| < 2^22: 1.5 * 2^23 more leaves no bits for a fraction."""
    return (b_x + 12582912.0) - 12582912.0


@triton.jit
def store_quantised(p_values, p_scale, b_x, o_own, m_own):
    """Quantise a row b_x [BLOCK] fp32 to the format of p_values, int8 or fp8 e4m3, by its greatest magnitude."""
    most = tl.max(tl.where(m_own, tl.abs(b_x), 0.0), 0)
    if p_values.dtype.element_ty == tl.int8:
        inverse = 127.0 / tl.where(most > 0, most, 1.0)
        tl.store(p_scale, most / 127.0)
        tl.store(p_values + o_own, round_to_even(b_x * inverse).to(tl.int8), mask=m_own)
    else:
        inverse = 448.0 / tl.where(most > 0, most, 1.0)
        tl.store(p_scale, most / 448.0)
        # The product may pass 448 by a rounding, and beyond that is NaN.
        b_cut = tl.clamp(b_x * inverse, -448.0, 448.0)
        tl.store(p_values + o_own, b_cut.to(p_values.dtype.element_ty), mask=m_own)
