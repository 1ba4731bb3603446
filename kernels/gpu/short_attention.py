"""The kernels of short slices: stretches of a context, and their combination. attention.py launches them."""

import triton
import triton.language as tl

from kernels.gpu.tiles import attend, find, store_rows


@triton.jit(do_not_specialize=["num_slices", "stride_table"])
def short_kernel(
    p_query,
    p_key,
    p_value,
    p_out,
    p_tables,
    p_starts,
    p_contexts,
    p_items,
    p_key_scales,
    p_value_scales,
    p_partial,
    p_log_sums,
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
    SPLIT: tl.constexpr,
):
    """A fixed number of programs takes turns with however many pieces of work there are: (tile of query rows, stretch
    of the context, key/value head)."""
    num_items = tl.load(p_items + num_slices) * HEADS
    o_d = tl.arange(0, BLOCK_D)
    for item in range(tl.program_id(0), num_items, tl.num_programs(0)):
        i_head = item % HEADS
        i_item = item // HEADS
        i_slice = find(p_items, i_item, num_slices)
        first = tl.load(p_starts + i_slice)
        count = tl.load(p_starts + i_slice + 1) - first
        context = tl.load(p_contexts + i_slice)
        num_stretches = tl.cdiv(context, SPLIT)
        i_own = i_item - tl.load(p_items + i_slice)
        start = (i_own % num_stretches) * SPLIT
        o_row = (i_own // num_stretches) * ROWS + tl.arange(0, ROWS)
        i_token = o_row // GROUP
        m_rows = (i_token < count)[:, None] & (o_d < D)[None, :]
        i_query_head = i_head * GROUP + o_row % GROUP
        o_query = (first + i_token).to(tl.int64) * stride_query + i_query_head * D
        b_query = tl.load(p_query + o_query[:, None] + o_d[None, :], mask=m_rows, other=0.0)  # [ROWS, BLOCK_D]
        factor = scale
        if SCALED:
            factor = scale * tl.load(p_key_scales + i_head)
        b_acc = tl.zeros([ROWS, BLOCK_D], tl.float32)
        b_most = tl.full([ROWS], -1e30, tl.float32)
        b_sum = tl.zeros([ROWS], tl.float32)
        b_acc, b_most, b_sum = attend(
            b_acc, b_most, b_sum, b_query,
            context - count + i_token,  # the position of each row
            p_key + i_head * PAGE * D, p_value + i_head * PAGE * D, p_tables + i_slice.to(tl.int64) * stride_table,
            start, tl.minimum(start + SPLIT, context), factor, stride_block,
            D, BLOCK_D, PAGE, TILE, True,
        )  # fmt: skip
        b_result = b_acc / b_sum[:, None]
        if SCALED:
            b_result *= tl.load(p_value_scales + i_head)
        if num_stretches == 1:
            o_out = (first + i_token).to(tl.int64) * (HEADS * GROUP * D) + i_query_head * D
            store_rows(p_out, o_out, b_result, o_d, m_rows)
        else:
            o_piece = item * ROWS + tl.arange(0, ROWS).to(tl.int64)
            store_rows(p_partial, o_piece * D, b_result, o_d, m_rows)
            tl.store(p_log_sums + o_piece, b_most + tl.log2(b_sum), mask=i_token < count)


@triton.jit(do_not_specialize=["num_slices"])
def combine_kernel(
    p_partial,
    p_log_sums,
    p_out,
    p_starts,
    p_contexts,
    p_items,
    num_slices,
    HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    D: tl.constexpr,
    BLOCK_D: tl.constexpr,
    ROWS: tl.constexpr,
    SPLIT: tl.constexpr,
    SHORT: tl.constexpr,
):
    """One row of one query head: the stretches weighted by their share of the whole softmax, in order. Rows of no slice
    become 0, so that what is computed from padding is finite."""
    i_row = tl.program_id(0)
    i_query_head = tl.program_id(1)
    o_d = tl.arange(0, BLOCK_D)
    m_d = o_d < D
    o_out = (i_row.to(tl.int64) * (HEADS * GROUP) + i_query_head) * D
    if i_row >= tl.load(p_starts + num_slices):
        tl.store(p_out + o_out + o_d, tl.zeros([BLOCK_D], p_out.dtype.element_ty), mask=m_d)
        return
    i_slice = find(p_starts, i_row, num_slices)
    first = tl.load(p_starts + i_slice)
    num_stretches = tl.cdiv(tl.load(p_contexts + i_slice), SPLIT)
    if (num_stretches <= 1) | (tl.load(p_starts + i_slice + 1) - first > SHORT):
        return
    i_packed = (i_row - first) * GROUP + i_query_head % GROUP
    i_item = tl.load(p_items + i_slice) + (i_packed // ROWS) * num_stretches
    o_piece = (i_item.to(tl.int64) * HEADS + i_query_head // GROUP) * ROWS + i_packed % ROWS
    b_acc = tl.zeros([BLOCK_D], tl.float32)
    most = tl.full((), -1e30, tl.float32)
    total = tl.full((), 0.0, tl.float32)
    for _ in range(num_stretches):
        log_sum = tl.load(p_log_sums + o_piece)
        b_part = tl.load(p_partial + o_piece * D + o_d, mask=m_d, other=0.0)
        higher = tl.maximum(most, log_sum)
        old, new = tl.exp2(most - higher), tl.exp2(log_sum - higher)
        b_acc = b_acc * old + b_part * new
        total = total * old + new
        most = higher
        o_piece += HEADS * ROWS
    tl.store(p_out + o_out + o_d, (b_acc / total).to(p_out.dtype.element_ty), mask=m_d)
