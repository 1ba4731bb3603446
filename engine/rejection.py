"""Rejection sampling of drafts that were drawn at random (Leviathan et al. 2023; Chen et al. 2023).

A drafted token x, drawn from q, is kept with probability min(1, p(x) / q(x)); otherwise the position's token is drawn
from what p has more than q. Either way the token is distributed as p, the target's own distribution.
"""

from __future__ import annotations

from collections.abc import Sequence as Items

import torch
from torch import Tensor

from engine.draw import distribution, pick
from engine.request import SamplingParams


def resolve(
    logits: Tensor,
    sampling: Items[SamplingParams],
    drafted: Tensor,
    chances: Tensor,
    acceptance: Tensor,
    residual: Tensor,
) -> Tensor:
    """The tokens of N contested positions -> [N] int64; a drafted one that was kept, or another.

    logits [N, vocab] are the target's, already held to penalties and formats; drafted [N] was drawn from chances
    [N, vocab]; acceptance and residual [N] float64 are independent numbers in [0, 1).
    """
    target = distribution(logits, sampling).double()
    drawn_from = chances.double()
    p, q = (table.gather(-1, drafted[:, None])[:, 0] for table in (target, drawn_from))
    kept = acceptance * q < p
    rest = (target - drawn_from).clamp(min=0.0)
    # Where the two agree there is nothing left to draw from, nor a rejection, but for rounding: draw from the target.
    rest = torch.where(rest.sum(-1, keepdim=True) > 0, rest, target)
    return torch.where(kept, drafted, pick(rest, residual))
