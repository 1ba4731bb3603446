"""What the attention kernels share on the device."""

import triton
import triton.language as tl


@triton.jit
def find(p_starts, value, num):
    """The last i in [0, num) with starts[i] <= value, for rising starts."""
    low = tl.full((), 0, tl.int32)
    high = low + num
    while high - low > 1:
        middle = (low + high) // 2
        below = tl.load(p_starts + middle) <= value
        low = tl.where(below, middle, low)
        high = tl.where(below, high, middle)
    return low


@triton.jit
def attend(
    b_acc,
    b_most,
    b_sum,
    b_query,
    b_position,
    p_key,
    p_value,
    p_table,
    start,
    stop,
    scale,
    stride_block,
    D: tl.constexpr,
    BLOCK_D: tl.constexpr,
    PAGE: tl.constexpr,
    TILE: tl.constexpr,
    MASKED: tl.constexpr,
):
    """Online softmax of query rows [ROWS, BLOCK_D] over the positions [start, stop) of one sequence and key/value head.

    Returns (weighted sum of values [ROWS, BLOCK_D], greatest score [ROWS] to base 2, sum of weights [ROWS]), continuing
    those given. `start` is a multiple of TILE. MASKED: a row sees positions up to its own; else all are seen by all,
    and stop is a multiple of TILE too. Masked scores are finite: a row that sees nothing of a tile would be NaN.
    """
    o_d = tl.arange(0, BLOCK_D)
    o_tile = tl.arange(0, TILE)
    for i_start in range(start, stop, TILE):
        o_n = i_start + o_tile
        m_n = o_n < stop
        # The offset of a block passes 2^31 in a cache of more than 2^31 numbers.
        if PAGE % TILE == 0:
            block = tl.load(p_table + i_start // PAGE).to(tl.int64)
            o_kv = block * stride_block + (i_start % PAGE + o_tile) * D  # [TILE]
        else:
            b_block = tl.load(p_table + o_n // PAGE, mask=m_n, other=0).to(tl.int64)
            o_kv = b_block * stride_block + (o_n % PAGE) * D  # [TILE]
        p_keys = p_key + o_kv[None, :] + o_d[:, None]  # [BLOCK_D, TILE]
        p_values = p_value + o_kv[:, None] + o_d[None, :]  # [TILE, BLOCK_D]
        if MASKED:
            b_key = tl.load(p_keys, mask=m_n[None, :] & (o_d < D)[:, None], other=0.0)
            b_value = tl.load(p_values, mask=m_n[:, None] & (o_d < D)[None, :], other=0.0)
        elif D != BLOCK_D:
            b_key = tl.load(p_keys, mask=(o_d < D)[:, None], other=0.0)
            b_value = tl.load(p_values, mask=(o_d < D)[None, :], other=0.0)
        else:
            b_key = tl.load(p_keys)
            b_value = tl.load(p_values)
        b_score = tl.dot(b_query, b_key.to(b_query.dtype), input_precision="ieee") * scale  # [ROWS, TILE]
        if MASKED:
            b_score = tl.where(o_n[None, :] <= b_position[:, None], b_score, -1e30)
        b_higher = tl.maximum(b_most, tl.max(b_score, 1))
        b_weight = tl.exp2(b_score - b_higher[:, None])
        b_shrink = tl.exp2(b_most - b_higher)
        b_sum = b_sum * b_shrink + tl.sum(b_weight, 1)
        b_acc = b_acc * b_shrink[:, None]
        b_acc = tl.dot(b_weight.to(b_query.dtype), b_value.to(b_query.dtype), acc=b_acc, input_precision="ieee")
        b_most = b_higher
    return b_acc, b_most, b_sum


@triton.jit
def store_rows(p_out, o_rows, b_rows, o_d, m_rows):
    """Store b_rows [ROWS, BLOCK_D] at the offsets o_rows [ROWS], in p_out's own format."""
    tl.store(p_out + o_rows[:, None] + o_d[None, :], b_rows.to(p_out.dtype.element_ty), mask=m_rows)
