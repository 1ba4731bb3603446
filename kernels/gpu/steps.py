"""What frames a step: its index tensors before the model runs, and how much of each draft is accepted after."""

import torch
import triton
import triton.language as tl
from torch import Tensor

MOST_DRAFTED = 64  # draft tokens compared at a time
TOKENS = 128  # tokens of a slice prepared at a time


def prepare_inputs(
    query_starts: Tensor, contexts: Tensor, owned: Tensor, logit_starts: Tensor, block_tables: Tensor,
    block_size: int, tokens: Tensor, rows: Tensor, last: Tensor, num_tokens: int, num_logits: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """reference.fed_tokens and reference.prepare_inputs, with room: (token_ids, positions, slots, logit_rows), of which
    the first three are [num_tokens], those that no slice owns 0, 0 and -1; logit_rows is [num_logits], filled up with
    0. `last` is int64, the other index tensors are int32."""
    token_ids, positions, slots = torch.empty((3, num_tokens), dtype=torch.int64, device=query_starts.device)
    logit_rows = torch.empty(num_logits, dtype=torch.int64, device=query_starts.device)
    num_slices = contexts.shape[0]
    _prepare_kernel[(num_slices + 1,)](
        query_starts,
        contexts,
        owned,
        logit_starts,
        block_tables,
        tokens,
        rows,
        last,
        token_ids,
        positions,
        slots,
        logit_rows,
        num_slices,
        num_tokens,
        num_logits,
        block_tables.stride(0),
        PAGE=block_size,
        BLOCK=TOKENS,
        num_warps=4,
    )
    return token_ids, positions, slots, logit_rows


def accept(chosen: Tensor, drafted: Tensor, logit_starts: Tensor) -> Tensor:
    """reference.accept: how many draft tokens of each slice are what was chosen -> [S] int32."""
    num_slices = logit_starts.shape[0] - 1
    counts = torch.empty(num_slices, dtype=torch.int32, device=chosen.device)
    if num_slices:
        _accept_kernel[(num_slices,)](chosen, drafted, logit_starts, counts, BLOCK=MOST_DRAFTED, num_warps=1)
    return counts


@triton.jit(do_not_specialize=["num_slices", "num_tokens", "num_logits", "stride_table"])
def _prepare_kernel(
    p_starts,
    p_contexts,
    p_owned,
    p_logit_starts,
    p_tables,
    p_tokens,
    p_rows,
    p_last,
    p_token_ids,
    p_positions,
    p_slots,
    p_logit_rows,
    num_slices,
    num_tokens,
    num_logits,
    stride_table,
    PAGE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """One slice; the last program fills what is left."""
    i_slice = tl.program_id(0)
    first = tl.load(p_starts + i_slice)
    if i_slice == num_slices:
        for start in range(first, num_tokens, BLOCK):
            i_row = start + tl.arange(0, BLOCK)
            tl.store(p_token_ids + i_row, (i_row * 0).to(tl.int64), mask=i_row < num_tokens)
            tl.store(p_positions + i_row, (i_row * 0).to(tl.int64), mask=i_row < num_tokens)
            tl.store(p_slots + i_row, (i_row * 0 - 1).to(tl.int64), mask=i_row < num_tokens)
        for start in range(tl.load(p_logit_starts + num_slices), num_logits, BLOCK):
            i_row = start + tl.arange(0, BLOCK)
            tl.store(p_logit_rows + i_row, (i_row * 0).to(tl.int64), mask=i_row < num_logits)
        return
    count = tl.load(p_starts + i_slice + 1) - first
    before = tl.load(p_contexts + i_slice) - count
    last_own = tl.load(p_owned + i_slice) - 1
    i_logit = tl.load(p_logit_starts + i_slice)
    p_table = p_tables + i_slice.to(tl.int64) * stride_table
    last = tl.load(p_last + tl.load(p_rows + i_slice))
    for start in range(0, count, BLOCK):
        i_token = start + tl.arange(0, BLOCK)
        m_token = i_token < count
        b_token = tl.load(p_tokens + first + i_token, mask=m_token, other=0).to(tl.int64)
        tl.store(p_token_ids + first + i_token, tl.where(b_token < 0, last, b_token), mask=m_token)
        b_position = before + i_token
        b_block = tl.load(p_table + b_position // PAGE, mask=m_token, other=0).to(tl.int64)
        tl.store(p_positions + first + i_token, b_position.to(tl.int64), mask=m_token)
        tl.store(p_slots + first + i_token, b_block * PAGE + b_position % PAGE, mask=m_token)
        m_logit = m_token & (b_position >= last_own)
        o_logit = i_logit + b_position - tl.maximum(last_own, before)
        tl.store(p_logit_rows + o_logit, (first + i_token).to(tl.int64), mask=m_logit)


@triton.jit
def _accept_kernel(p_chosen, p_drafted, p_starts, p_counts, BLOCK: tl.constexpr):
    """One slice: where the first draft token differs from what was chosen there."""
    i_slice = tl.program_id(0)
    first = tl.load(p_starts + i_slice)
    num_drafted = tl.load(p_starts + i_slice + 1) - first - 1
    accepted = tl.full((), 0, tl.int32)
    agreed = num_drafted > 0
    start = tl.full((), 0, tl.int32)
    while agreed:
        i_draft = start + tl.arange(0, BLOCK)
        m_draft = i_draft < num_drafted
        b_chosen = tl.load(p_chosen + first + i_draft, mask=m_draft, other=0)
        b_drafted = tl.load(p_drafted + first + i_draft, mask=m_draft, other=0)
        stop = tl.minimum(start + BLOCK, num_drafted)
        accepted = tl.min(tl.where(m_draft & (b_chosen != b_drafted), i_draft, stop), 0)
        start += BLOCK
        agreed = (accepted == stop) & (start < num_drafted)
    tl.store(p_counts + i_slice, accepted)
