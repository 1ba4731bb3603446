"""Products of 8-bit rows with 8-bit weights (W8A8) in plain PyTorch: the definition, beside reference.py."""

from __future__ import annotations

import torch
from torch import Tensor


def quantise_rows(x: Tensor) -> tuple[Tensor, Tensor]:
    """Rows of x [T, N] as whole numbers from -127 to 127 and a scale each -> ([T, N] int8, [T, 1] fp32).

    The largest magnitude of a row becomes 127; a row is about its numbers times its scale.
    """
    most = x.float().abs().amax(dim=-1, keepdim=True)
    inverse = torch.where(most > 0, 127.0 / most, 0.0)
    return (x.float() * inverse).round().to(torch.int8), most / 127.0


def int8_linear(x: Tensor, weight: Tensor, scales: Tensor) -> Tensor:
    """x [T, K] times the transpose of weight [N, K] int8 with scales [N, 1] -> [T, N] fp32.

    Rows of x are quantised, products and sums are exact (W8A8, as in LLM.int8 without outliers, Dettmers et al. 2022).
    """
    values, own_scales = quantise_rows(x)
    return torch._int_mm(values, weight.t()).float() * (own_scales * scales.t())
