"""The kernel of long slices: prompts and their parts. attention.py launches it."""

import triton
import triton.language as tl

from kernels.gpu.tiles import attend, find, store_rows


@triton.jit(do_not_specialize=["num_slices", "stride_table"])
def long_kernel(
    p_query,
    p_key,
    p_value,
    p_out,
    p_tables,
    p_starts,
    p_contexts,
    p_tiles,
    p_key_scales,
    p_value_scales,
    scale,
    num_slices,
    stride_query,
    stride_block,
    stride_table,
    HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    D: tl.constexpr,
    BLOCK_D: tl.constexpr,
    PAGE: tl.constexpr,
    TILE: tl.constexpr,
    SCALED: tl.constexpr,
    ROWS: tl.constexpr,
):
    """One tile of query rows against its whole context. What every row sees is computed without masks."""
    i_tile = tl.program_id(0)
    i_head = tl.program_id(1)
    if i_tile >= tl.load(p_tiles + num_slices):
        return
    i_slice = find(p_tiles, i_tile, num_slices)
    first = tl.load(p_starts + i_slice)
    count = tl.load(p_starts + i_slice + 1) - first
    before = tl.load(p_contexts + i_slice) - count  # positions before the slice
    start_row = (i_tile - tl.load(p_tiles + i_slice)) * ROWS
    o_row = start_row + tl.arange(0, ROWS)
    o_d = tl.arange(0, BLOCK_D)
    i_token = o_row // GROUP
    m_rows = (i_token < count)[:, None] & (o_d < D)[None, :]
    i_query_head = i_head * GROUP + o_row % GROUP
    o_query = (first + i_token).to(tl.int64) * stride_query + i_query_head * D
    b_query = tl.load(p_query + o_query[:, None] + o_d[None, :], mask=m_rows, other=0.0)  # [ROWS, BLOCK_D]
    p_table = p_tables + i_slice.to(tl.int64) * stride_table
    factor = scale
    if SCALED:
        factor = scale * tl.load(p_key_scales + i_head)
    whole = (before + start_row // GROUP + 1) // TILE * TILE  # tiles that the first row sees whole
    stop = before + tl.minimum((start_row + ROWS - 1) // GROUP + 1, count)  # what the last row sees
    p_key += i_head * PAGE * D
    p_value += i_head * PAGE * D
    b_acc = tl.zeros([ROWS, BLOCK_D], tl.float32)
    b_most = tl.full([ROWS], -1e30, tl.float32)
    b_sum = tl.zeros([ROWS], tl.float32)
    b_acc, b_most, b_sum = attend(
        b_acc, b_most, b_sum, b_query, before + i_token, p_key, p_value, p_table, 0, whole, factor, stride_block,
        D, BLOCK_D, PAGE, TILE, False,
    )  # fmt: skip
    b_acc, b_most, b_sum = attend(
        b_acc, b_most, b_sum, b_query, before + i_token, p_key, p_value, p_table, whole, stop, factor, stride_block,
        D, BLOCK_D, PAGE, TILE, True,
    )  # fmt: skip
    b_result = b_acc / b_sum[:, None]
    if SCALED:
        b_result *= tl.load(p_value_scales + i_head)
    o_out = (first + i_token).to(tl.int64) * (HEADS * GROUP * D) + i_query_head * D
    store_rows(p_out, o_out, b_result, o_d, m_rows)
