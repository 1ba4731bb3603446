"""Choosing tokens: the most probable one, or one drawn by the Gumbel-max trick, and log-probabilities.

The noise of a token is a function of the row's seed, the position and the token (engine.philox, the token as the
fourth word of the counter), so what is drawn depends on neither batch nor order. Rows are independent programs.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 4096  # tokens taken at a time
STREAM = 4  # of the random numbers; the others are engine.philox's
LOWEST = tl.constexpr(-2139095041)  # the key of minus infinity


def sample(
    logits: Tensor,
    temperatures: Tensor,
    top_k: Tensor,
    top_p: Tensor,
    min_p: Tensor,
    seeds: Tensor,
    positions: Tensor,
) -> Tensor:
    """Draw a token of each row of logits [R, vocab] fp32 as reference.gumbel_sample does -> [R] int64.

    Parameters are [R]: temperatures, top_p and min_p fp32, top_k int32, seeds (of 64 bits) and positions int64.
    """
    num_rows, vocab = logits.shape
    assert logits.stride(1) == 1
    tokens = torch.empty(num_rows, dtype=torch.int64, device=logits.device)
    if num_rows:
        _sample_kernel[(num_rows,)](
            logits,
            temperatures,
            top_k,
            top_p,
            min_p,
            seeds,
            positions,
            tokens,
            vocab,
            logits.stride(0),
            STREAM=STREAM,
            BLOCK=min(BLOCK, triton.next_power_of_2(vocab)),
            num_warps=8,
        )
    return tokens


def token_logprobs(logits: Tensor, tokens: Tensor) -> Tensor:
    """The log-probability of one token [R] int64 of each row of logits [R, vocab] fp32 -> [R] fp32."""
    num_rows, vocab = logits.shape
    assert logits.stride(1) == 1
    out = torch.empty(num_rows, dtype=torch.float32, device=logits.device)
    if num_rows:
        block = min(BLOCK, triton.next_power_of_2(vocab))
        _logprob_kernel[(num_rows,)](logits, tokens, out, vocab, logits.stride(0), BLOCK=block, num_warps=8)
    return out


@triton.jit
def _value(key):
    """The number of a key; keys are whole numbers that rise as the numbers do."""
    bits = tl.where(key < 0, key ^ 0x7FFFFFFF, key)
    return bits.to(tl.int32).to(tl.float32, bitcast=True)


@triton.jit
def _key(value):
    bits = value.to(tl.int32, bitcast=True)
    return tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits)


@triton.jit
def _above(p_row, vocab, value, floor, most, temperature, COUNTED: tl.constexpr, BLOCK: tl.constexpr):
    """How many logits of a row are greater than `value`, or the probability mass of those among the logits of at
    least `floor`, where the greatest logit `most` weighs 1."""
    total = tl.full((), 0.0, tl.float32)
    for start in range(0, vocab, BLOCK):
        o_token = start + tl.arange(0, BLOCK)
        b_logit = tl.load(p_row + o_token, mask=o_token < vocab, other=float("-inf"))
        m_above = b_logit > value
        if COUNTED:
            total += tl.sum(m_above.to(tl.float32), 0)
        else:
            b_weight = tl.exp((b_logit - most) / temperature)
            total += tl.sum(tl.where(m_above & (b_logit >= floor), b_weight, 0.0), 0)
    return total


@triton.jit
def _threshold(p_row, vocab, limit, floor, most, temperature, COUNTED: tl.constexpr, BLOCK: tl.constexpr):
    """The smallest number with less than `limit` above it, by bisection of the numbers' keys."""
    low = tl.full((), LOWEST, tl.int64)
    high = _key(most).to(tl.int64)
    while low < high:
        middle = (low + high) >> 1  # towards minus infinity, so that it is below high
        less = _above(p_row, vocab, _value(middle.to(tl.int32)), floor, most, temperature, COUNTED, BLOCK) < limit
        high = tl.where(less, middle, high)
        low = tl.where(less, low, middle + 1)
    return _value(high.to(tl.int32))


@triton.jit
def _sample_kernel(
    p_logits,
    p_temperatures,
    p_top_k,
    p_top_p,
    p_min_p,
    p_seeds,
    p_positions,
    p_tokens,
    vocab,
    stride_logits,
    STREAM: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """One row. Filters become one threshold; ties with it stay."""
    i_row = tl.program_id(0).to(tl.int64)
    p_row = p_logits + i_row * stride_logits
    temperature = tl.load(p_temperatures + i_row)
    top_k = tl.load(p_top_k + i_row)
    top_p = tl.load(p_top_p + i_row)
    min_p = tl.load(p_min_p + i_row)
    floor = tl.full((), float("-inf"), tl.float32)
    divisor = tl.where(temperature > 0, temperature, 1.0)
    if (temperature > 0) & ((top_k > 0) | (top_p < 1) | (min_p > 0)):
        most = tl.full((), float("-inf"), tl.float32)
        for start in range(0, vocab, BLOCK):
            o_token = start + tl.arange(0, BLOCK)
            b_logit = tl.load(p_row + o_token, mask=o_token < vocab, other=float("-inf"))
            most = tl.maximum(most, tl.max(b_logit, 0))
        if (top_k > 0) & (top_k < vocab):
            floor = _threshold(p_row, vocab, top_k.to(tl.float32), floor, most, divisor, True, BLOCK)
        if top_p < 1:
            lowest = _value(tl.full((), LOWEST, tl.int32))
            mass = _above(p_row, vocab, lowest, floor, most, divisor, False, BLOCK)
            # At least the greatest stays: nothing lies above it, and the limit is above nothing.
            limit = tl.maximum(top_p * mass, 1e-30)
            floor = tl.maximum(floor, _threshold(p_row, vocab, limit, floor, most, divisor, False, BLOCK))
        if min_p > 0:
            floor = tl.maximum(floor, most + tl.log(min_p) * divisor)
    seed = tl.load(p_seeds + i_row)
    position = tl.load(p_positions + i_row)
    best = tl.full((), float("-inf"), tl.float32)
    token = tl.full((), 0, tl.int32)
    for start in range(0, vocab, BLOCK):
        o_token = start + tl.arange(0, BLOCK)
        b_score = tl.load(p_row + o_token, mask=o_token < vocab, other=float("-inf"))
        b_score = tl.where(b_score >= floor, b_score / divisor, float("-inf"))
        if temperature > 0:
            b_score += _gumbel(seed, position, o_token, STREAM)
        own = tl.max(b_score, 0)
        better = own > best  # of equals the first stays
        token = tl.where(better, start + tl.argmax(b_score, 0), token)
        best = tl.where(better, own, best)
    tl.store(p_tokens + i_row, token.to(tl.int64))


@triton.jit
def _gumbel(seed, position, o_token, STREAM: tl.constexpr):
    """A Gumbel number for each token: -log(E) of E = -log(1 - u), u of 32 bits.

    Great numbers come from small u, which keep all their bits; there E is summed as a series, because 1 - u is not.
    """
    b_zero = (o_token * 0).to(tl.uint32)
    b_low = b_zero + (position & 0xFFFFFFFF).to(tl.uint32)
    b_high = b_zero + ((position >> 32) & 0xFFFFFFFF).to(tl.uint32)
    b_bits, _, _, _ = tl.philox(seed, b_low, b_high, b_zero + STREAM, o_token.to(tl.uint32))
    b_u = b_bits.to(tl.float32) * 2.3283064365386963e-10 + 1.1641532182693481e-10  # (bits + 1/2) / 2^32
    b_series = b_u * (1.0 + b_u * (0.5 + b_u * (1.0 / 3.0 + b_u * 0.25)))
    # The greatest u rounds to 1, whose logarithm is kept finite.
    b_exponential = tl.where(b_u < 0.015625, b_series, -tl.log(tl.maximum(1.0 - b_u, 2.98e-8)))
    return -tl.log(b_exponential)


@triton.jit
def _logprob_kernel(p_logits, p_tokens, p_out, vocab, stride_logits, BLOCK: tl.constexpr):
    """One row: its log-sum-exp in one pass."""
    i_row = tl.program_id(0).to(tl.int64)
    p_row = p_logits + i_row * stride_logits
    most = tl.full((), -1e30, tl.float32)
    total = tl.full((), 0.0, tl.float32)
    for start in range(0, vocab, BLOCK):
        o_token = start + tl.arange(0, BLOCK)
        b_logit = tl.load(p_row + o_token, mask=o_token < vocab, other=float("-inf"))
        higher = tl.maximum(most, tl.max(b_logit, 0))
        total = total * tl.exp(most - higher) + tl.sum(tl.exp(b_logit - higher), 0)
        most = higher
    own = tl.load(p_row + tl.load(p_tokens + i_row))
    tl.store(p_out + i_row, own - most - tl.log(total))
