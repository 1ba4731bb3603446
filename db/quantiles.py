"""Quantiles of 80 % intervals: a tenth of the true values lies beyond each end."""

from __future__ import annotations

import math
import statistics

Z = statistics.NormalDist().inv_cdf(0.9)


def quantile(freedom: float) -> float:
    """The 0.9 quantile of Student's t: Cornish and Fisher's expansion, right to 0.1 % from three degrees on, and to 4 %
    with two (Abramowitz and Stegun 26.7.5); with one, the Cauchy distribution's own."""
    if freedom == math.inf:
        return Z
    if freedom <= 1:
        return math.tan(0.4 * math.pi)
    z, n = Z, freedom
    first = (z**3 + z) / 4
    second = (5 * z**5 + 16 * z**3 + 3 * z) / 96
    third = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384
    return z + first / n + second / n**2 + third / n**3
