"""Products of 8-bit rows with 8-bit weights (W8A8) in plain PyTorch: the definition, beside reference.py.

A row's largest number decides how coarse the others become, and language models have features far larger than the
rest. Hadamard transforms spread these before a row is quantised, and the weights are transformed alike when they are
loaded, so that the product stays the same (QuaRot, Ashkboos et al. 2024).
"""

from __future__ import annotations

import torch
from torch import Tensor

MOST_GROUPS = 16
WIDTH = 16


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


def spread(x: Tensor) -> Tensor:
    """The Hadamard transform of stretches of features of x [..., N], not normalised.

    Stretches are 1 to 16 neighbouring groups of 16 features, as many as divide N. Feature j of a group is mixed with
    feature j of the others, which in vector registers takes additions alone; only where these are fewer than 16 the
    features of each group are mixed as well. Rows of no whole groups stay as they are.
    """
    groups = _groups(x.shape[-1])
    if groups == 0:
        return x
    parts = _hadamard(groups).to(x) @ x.reshape(*x.shape[:-1], -1, groups, WIDTH)
    return (parts if groups == MOST_GROUPS else parts @ _hadamard(WIDTH).to(x)).reshape(x.shape)


def spread_weights(matrix: Tensor) -> Tensor:
    """The matrix [N, K] whose product with spread rows is that of `matrix` with the rows themselves."""
    groups = _groups(matrix.shape[-1])
    if groups == 0:
        return matrix
    return spread(matrix) / (groups if groups == MOST_GROUPS else groups * WIDTH)


def _groups(size: int) -> int:
    """Groups of a stretch in rows of `size` features: the largest power of two that divides their number."""
    count = size // WIDTH if size % WIDTH == 0 else 0
    return min(count & -count, MOST_GROUPS)


def _hadamard(size: int) -> Tensor:
    """Sylvester's matrix of ones and minus ones [size, size]; size is a power of two."""
    matrix = torch.ones(1, 1)
    while len(matrix) < size:
        matrix = torch.cat((torch.cat((matrix, matrix), dim=1), torch.cat((matrix, -matrix), dim=1)))
    return matrix
