"""Every op of the model in plain PyTorch: the definition that faster kernels are compared with.

Arguments are tensors and numbers. T tokens, S slices, H query heads, Hkv key/value heads, D the size of a head.
"""

from __future__ import annotations

import itertools
import math

import torch
import torch.nn.functional as F
from torch import Tensor


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x / sqrt(mean(x^2) + eps) * weight over the last dimension (Zhang and Sennrich 2019), computed in fp32."""
    wide = x.float()
    scale = torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)
    return weight * (wide * scale).to(x.dtype)


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Return (the norm of x + residual, x + residual)."""
    total = x + residual
    return rms_norm(total, weight, eps), total


def silu_and_mul(gate_up: Tensor) -> Tensor:
    """silu(gate) * up, for gate_up [T, 2 * N] with the gates first -> [T, N] (Shazeer 2020)."""
    gate, up = gate_up.chunk(2, dim=-1)
    return F.silu(gate) * up


def rope_frequencies(head_dim: int, theta: float) -> Tensor:
    """The angle per position of each pair of features, [D / 2] fp32: theta^(-2 i / D) (Su et al. 2021)."""
    return 1.0 / theta ** (torch.arange(0, head_dim, 2, dtype=torch.int64).float() / head_dim)


def llama3_frequencies(
    frequencies: Tensor, factor: float, low_freq_factor: float, high_freq_factor: float, original_max_position: int
) -> Tensor:
    """Stretch the slow frequencies by `factor` and keep the fast ones, as Llama 3.1 does.

    A feature pair is slow when its wavelength exceeds original_max_position / low_freq_factor, fast when it is below
    original_max_position / high_freq_factor; between the two it is blended linearly in original_max_position /
    wavelength.
    """
    turns = original_max_position * frequencies / (2 * math.pi)
    keep = ((turns - low_freq_factor) / (high_freq_factor - low_freq_factor)).clamp(0.0, 1.0)
    return frequencies / factor * (1 - keep) + frequencies * keep


def rope_table(positions: Tensor, frequencies: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Cosines and sines of positions [T] int64, each [T, 1, D] in `dtype`: the two halves of D are the same."""
    angles = positions.float()[:, None] * frequencies[None, :]
    angles = torch.cat((angles, angles), dim=-1)[:, None, :]
    return angles.cos().to(dtype), angles.sin().to(dtype)


def rope(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate x [T, H, D]: feature i of the first half of D pairs with feature i of the second half."""
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-second, first), dim=-1) * sin


def write_cache(key: Tensor, value: Tensor, key_cache: Tensor, value_cache: Tensor, slots: Tensor) -> None:
    """Put key and value [T, Hkv, D] into the caches [blocks, Hkv, block_size, D] at slots [T] int64, in place.

    A slot is block * block_size + offset.
    """
    block_size = key_cache.shape[2]
    blocks, offsets = slots // block_size, slots % block_size
    key_cache[blocks, :, offsets] = key
    value_cache[blocks, :, offsets] = value


def paged_attention(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    block_tables: Tensor,
    query_starts: Tensor,
    context_lengths: Tensor,
    scale: float,
) -> Tensor:
    """Causal attention of query [T, H, D] over paged keys and values -> [T, H, D].

    Slice s owns the query rows [query_starts[s], query_starts[s + 1]): the last ones of the first context_lengths[s]
    positions, which block_tables[s] locates in the caches [blocks, Hkv, block_size, D]. Query head h reads key/value
    head h // (H / Hkv). Scores and the weighted sum are computed in fp32.
    """
    group, block_size = query.shape[1] // key_cache.shape[1], key_cache.shape[2]
    out = torch.empty_like(query)
    starts, contexts = query_starts.tolist(), context_lengths.tolist()
    for i_slice, context in enumerate(contexts):
        rows = slice(starts[i_slice], starts[i_slice + 1])
        blocks = block_tables[i_slice, : -(-context // block_size)].long()
        # [blocks, Hkv, block_size, D] -> [H, context, D]
        key, value = (
            cache[blocks].transpose(0, 1).flatten(1, 2)[:, :context].repeat_interleave(group, dim=0).float()
            for cache in (key_cache, value_cache)
        )
        scores = query[rows].transpose(0, 1).float() @ key.transpose(1, 2) * scale  # [H, rows, context]
        position = torch.arange(context, device=query.device)
        own = position[context - (rows.stop - rows.start) :, None]
        scores = scores.masked_fill(position[None, :] > own, -torch.inf)
        out[rows] = (scores.softmax(dim=-1) @ value).transpose(0, 1).to(query.dtype)
    return out


def apply_token_bitmask(logits: Tensor, rows: Tensor, mask: Tensor) -> None:
    """Rule tokens out, in place: logits [R, vocab] fp32 at rows [N] int64, all different, become -inf where the row's
    bit in mask [N, ceil(vocab / 32)] int32 is not set. Token t is bit t % 32 of word t // 32.
    """
    tokens = torch.arange(logits.shape[1], device=logits.device)
    allowed = (mask[:, tokens // 32] >> (tokens % 32).int()) & 1
    logits[rows] = logits[rows].masked_fill(allowed == 0, -torch.inf)


def quantise_rows_fp8(x: Tensor) -> tuple[Tensor, Tensor]:
    """Rows of x [T, N] as fp8 e4m3 and a scale each -> ([T, N], [T, 1] fp32): a row's largest magnitude becomes 448,
    the format's own. A row is about its numbers times its scale."""
    most = x.float().abs().amax(dim=-1, keepdim=True)
    values = x.float() * (448.0 / torch.where(most > 0, most, 1.0))
    return values.clamp(-448.0, 448.0).to(torch.float8_e4m3fn), most / 448.0


def fp8_linear(values: Tensor, scales: Tensor, weight: Tensor, weight_scales: Tensor, dtype: torch.dtype) -> Tensor:
    """Rows [T, K] and weight [N, K] in fp8, with scales [T, 1] and [N, 1] -> their product [T, N] in `dtype` (W8A8)."""
    return ((values.float() @ weight.float().t()) * (scales * weight_scales.t())).to(dtype)


def gumbel_sample(
    logits: Tensor, temperatures: Tensor, top_k: Tensor, top_p: Tensor, min_p: Tensor, noise: Tensor
) -> Tensor:
    """Draw a token of each row of logits [R, vocab] fp32 by Gumbel noise [R, vocab] -> [R] int64 (Gumbel 1954).

    Parameters are [R]. Temperature 0: the most probable. Filters after temperature, in this order: top_k (0: off),
    top_p of what is left, min_p relative to the most probable. Equal logits pass a filter together.
    """
    scaled = logits / torch.where(temperatures > 0, temperatures, 1.0)[:, None]
    ordered, places = scaled.sort(dim=-1, descending=True, stable=True)
    vocab = logits.shape[-1]
    k = torch.where((top_k > 0) & (top_k < vocab), top_k, vocab).long()
    kept = ordered >= ordered.gather(-1, k[:, None] - 1)
    mass = ordered.softmax(-1).double() * kept
    before = mass.cumsum(-1) - mass
    # Equals begin where the first of them does.
    first = torch.searchsorted(-ordered, -ordered)
    above = before.gather(-1, first)
    whole = mass.sum(-1, keepdim=True)
    kept &= (above < top_p[:, None] * whole) | (first == 0) | (top_p[:, None] >= 1)
    kept &= ordered >= ordered[:, :1] + min_p[:, None].log()
    scores = ordered + noise.gather(-1, places)
    drawn = places.gather(-1, scores.masked_fill(~kept, -torch.inf).argmax(-1, keepdim=True))[:, 0]
    return torch.where(temperatures > 0, drawn, logits.argmax(-1))


def prepare_inputs(
    query_starts: Tensor, contexts: Tensor, owned: Tensor, logit_starts: Tensor, block_tables: Tensor, block_size: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Index tensors of a step's T tokens -> (positions [T], slots [T], logit_rows [R]), all int64.

    Slice s owns the rows [query_starts[s], query_starts[s + 1]), the last positions of contexts[s]. Its sequence has
    owned[s] tokens of its own; the last of these and the draft behind it have logits, from row logit_starts[s] on.
    """
    positions, slots, logit_rows = [], [], []
    for i_slice, (context, own) in enumerate(zip(contexts.tolist(), owned.tolist(), strict=True)):
        first, stop = query_starts[i_slice].item(), query_starts[i_slice + 1].item()
        own_positions = torch.arange(context - (stop - first), context, device=contexts.device)
        blocks = block_tables[i_slice][own_positions // block_size].long()
        positions.append(own_positions)
        slots.append(blocks * block_size + own_positions % block_size)
        logit_rows.append(first + (own_positions >= own - 1).nonzero()[:, 0])
        assert sum(map(len, logit_rows)) == logit_starts[i_slice + 1]
    return torch.cat(positions), torch.cat(slots), torch.cat(logit_rows)


def fed_tokens(query_starts: Tensor, tokens: Tensor, rows: Tensor, last: Tensor) -> Tensor:
    """A step's tokens [T] -> [T] int64. Those below 0 are not known on the host: they stand for what last [rows] has
    in the row of their slice, rows [S]."""
    owners = torch.repeat_interleave(rows.long(), query_starts.diff().long())
    return torch.where(tokens < 0, last[owners], tokens.long())


def accept(chosen: Tensor, drafted: Tensor, logit_starts: Tensor) -> Tensor:
    """How many draft tokens of each slice come before the first that is not what was chosen there -> [S] int32.

    Slice s has the rows [logit_starts[s], logit_starts[s + 1]) of chosen [R]; all but its last verify the draft tokens
    in the same rows of drafted [R].
    """
    bounds = logit_starts.tolist()
    counts = []
    for first, stop in itertools.pairwise(bounds):
        same = (chosen[first : stop - 1] == drafted[first : stop - 1]).int() if stop > first else chosen[:0].int()
        counts.append(int(same.cumprod(0).sum()))
    return torch.tensor(counts, dtype=torch.int32, device=chosen.device)
