"""Drawing tokens from logits: temperature, top-k, top-p and min-p, by inversion of the distribution function.

One uniform number decides a token, so the same number and the same logits give the same token whatever else is drawn.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from engine.request import SamplingParams

LOWEST_TEMPERATURE = 1e-10  # keeps the division finite in fp32
NUCLEUS = 256  # candidates looked at before a whole vocabulary is sorted for top-p


def draw(logits: Tensor, sampling: Sequence[SamplingParams], uniforms: Tensor) -> Tensor:
    """Draw a token for each row of logits [N, vocab] fp32 with its own parameters -> [N] int64.

    `uniforms` [N] float64 lie in [0, 1). Filters apply in the order top-k, top-p (of what top-k left), min-p (relative
    to the most probable token), all after temperature.
    """

    def column(values: Sequence[float]) -> Tensor:
        return torch.tensor(values, device=logits.device)[:, None]

    temperature = column([max(each.temperature, LOWEST_TEMPERATURE) for each in sampling])
    probs = ((logits - logits.amax(-1, keepdim=True)) / temperature).softmax(-1)
    vocab = logits.shape[-1]
    top_k = [each.top_k if 0 < each.top_k < vocab else vocab for each in sampling]
    narrow = [row for row, each in enumerate(sampling) if top_k[row] < vocab or each.top_p < 1.0]
    min_p = [each.min_p for each in sampling]
    if not narrow:
        return _invert(_above(probs, column(min_p)) if any(min_p) else probs, uniforms)
    tokens = torch.empty(len(sampling), dtype=torch.int64, device=logits.device)
    wide = sorted(set(range(len(sampling))) - set(narrow))
    if wide:
        kept = _above(probs[wide], column([min_p[row] for row in wide]))
        tokens[wide] = _invert(kept, uniforms[wide])
    limits = torch.tensor([top_k[row] for row in narrow], device=logits.device)[:, None]
    top_p = column([sampling[row].top_p for row in narrow])
    floor = column([min_p[row] for row in narrow])
    tokens[narrow] = _draw_narrow(probs[narrow], limits, top_p, floor, uniforms[narrow])
    return tokens


def distribution(logits: Tensor, sampling: Sequence[SamplingParams]) -> Tensor:
    """What `draw` draws from: probabilities [N, vocab] fp32 of each row of logits with its own parameters."""

    def column(values: Sequence[float]) -> Tensor:
        return torch.tensor(values, device=logits.device)[:, None]

    temperature = column([max(each.temperature, LOWEST_TEMPERATURE) for each in sampling])
    probs = ((logits - logits.amax(-1, keepdim=True)) / temperature).softmax(-1)
    weights, tokens = probs.sort(dim=-1, descending=True)
    vocab = logits.shape[-1]
    top_k = column([each.top_k if 0 < each.top_k < vocab else vocab for each in sampling])
    kept = _nucleus(
        weights, top_k, column([each.top_p for each in sampling]), column([each.min_p for each in sampling])
    )
    return torch.zeros_like(probs).scatter_(-1, tokens, kept / kept.sum(-1, keepdim=True))


def pick(probs: Tensor, uniforms: Tensor) -> Tensor:
    """A token of each distribution [N, vocab], which need not be normalised, by a number in [0, 1) -> [N] int64."""
    return _invert(probs, uniforms)


def _above(probs: Tensor, min_p: Tensor) -> Tensor:
    """probs [N, V] with what lies below min_p [N, 1] of the row's greatest set to 0."""
    return probs.masked_fill(probs < min_p * probs.amax(-1, keepdim=True), 0.0)


def _draw_narrow(probs: Tensor, top_k: Tensor, top_p: Tensor, min_p: Tensor, uniforms: Tensor) -> Tensor:
    """Draw from the most probable tokens of each row; parameters are [N, 1] -> tokens [N]."""
    vocab = probs.shape[-1]
    finite = top_k[top_k < vocab].tolist()
    width = min(max(finite, default=0) if len(finite) == len(top_k) else max(NUCLEUS, *finite, 0), vocab)
    weights, tokens = probs.topk(width, dim=-1)  # in falling order
    # Where neither top_k nor top_p ends within the candidates, the whole row is needed.
    short = ((top_k > width) & (weights.sum(-1, keepdim=True) < top_p))[:, 0] if width < vocab else None
    drawn = tokens.gather(-1, _invert(_nucleus(weights, top_k, top_p, min_p), uniforms)[:, None])[:, 0]
    if short is not None and bool(short.any()):
        weights, tokens = probs[short].sort(dim=-1, descending=True)
        picked = _invert(_nucleus(weights, top_k[short], top_p[short], min_p[short]), uniforms[short])
        drawn[short] = tokens.gather(-1, picked[:, None])[:, 0]
    return drawn


def _nucleus(weights: Tensor, top_k: Tensor, top_p: Tensor, min_p: Tensor) -> Tensor:
    """weights [N, K], falling, with all that top-k, top-p and min-p exclude set to 0; the first always stays."""
    rank = torch.arange(weights.shape[-1], device=weights.device)
    weights = weights.masked_fill(rank >= top_k, 0.0)
    mass = weights.cumsum(-1, dtype=torch.float64)
    # With top_k the candidates are all there is; without, the row's whole mass is 1 even if the tail is not here.
    whole = torch.where(top_k <= weights.shape[-1], mass[:, -1:], 1.0)
    before = mass - weights
    outside = (before >= top_p * whole) & (rank > 0)
    return _above(weights.masked_fill(outside, 0.0), min_p)


def _invert(weights: Tensor, uniforms: Tensor) -> Tensor:
    """The place in each row of weights [N, K], not normalised, where the distribution function passes `uniforms`."""
    mass = weights.cumsum(-1, dtype=torch.float64)
    total = mass[:, -1:]
    target = torch.minimum(uniforms[:, None] * total, torch.nextafter(total, torch.zeros_like(total)))
    return torch.searchsorted(mass, target, right=True)[:, 0]
