"""Ruling out the tokens that a format does not allow."""

import triton
import triton.language as tl
from torch import Tensor

BLOCK = 2048  # tokens of a program


def apply_token_bitmask(logits: Tensor, rows: Tensor, mask: Tensor) -> None:
    """reference.apply_token_bitmask, in place: logits [R, vocab] fp32 at rows [N] int64, mask [N, words] int32."""
    vocab = logits.shape[1]
    assert logits.stride(1) == 1
    assert mask.is_contiguous()
    assert mask.shape[1] * 32 >= vocab
    if rows.shape[0]:
        grid = (rows.shape[0], triton.cdiv(vocab, BLOCK))
        _bitmask_kernel[grid](logits, rows, mask, vocab, logits.stride(0), mask.shape[1], BLOCK=BLOCK, num_warps=4)


@triton.jit
def _bitmask_kernel(p_logits, p_rows, p_mask, vocab, stride_logits, stride_mask, BLOCK: tl.constexpr):
    """A stretch of one row. Only forbidden tokens are written, so that allowed logits are not even read."""
    i_mask = tl.program_id(0).to(tl.int64)
    i_row = tl.load(p_rows + i_mask).to(tl.int64)
    o_token = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    m_token = o_token < vocab
    b_word = tl.load(p_mask + i_mask * stride_mask + o_token // 32, mask=m_token, other=0)
    m_forbidden = ((b_word >> (o_token % 32)) & 1) == 0
    tl.store(p_logits + i_row * stride_logits + o_token, float("-inf"), mask=m_token & m_forbidden)
