"""Intervals: what a sample says about a whole, and how sure it is. No torch, no database: numbers alone.

All intervals are two-sided and of 80 %: a tenth of the true values lies beyond each end.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from db.quantiles import Z, quantile


@dataclass(frozen=True, slots=True)
class Estimate:
    """A value, its standard error, and how many degrees of freedom that error was found with; infinite: it is known."""

    value: float
    error: float = 0.0
    freedom: float = math.inf

    def times(self, factor: float) -> Estimate:
        return Estimate(self.value * factor, self.error * abs(factor), self.freedom)

    def plus(self, other: Estimate) -> Estimate:
        """Of the sum of two that were found independently of each other (Welch and Satterthwaite's freedom)."""
        variance = self.error**2 + other.error**2
        parts = sum(each.error**4 / each.freedom for each in (self, other) if each.error)
        freedom = variance**2 / parts if parts else math.inf
        return Estimate(self.value + other.value, math.sqrt(variance), freedom)

    def interval(self) -> tuple[float, float]:
        """From and to, for what cannot be negative: below the value its error counts as a factor, so that one as large
        as the value itself does not reach down to 0."""
        half = quantile(self.freedom) * self.error
        low = self.value * math.exp(-half / self.value) if self.value else 0.0
        return low, self.value + half


def stratified_mean(
    strata: Sequence[Sequence[float]],
    sizes: Sequence[int],
    least: float,
    most: float,
    *,
    weights: Sequence[Sequence[float]] = (),
    totals: Sequence[float] = (),
    chance: bool = False,
) -> Estimate:
    """The mean over a population cut into strata of these sizes, from values drawn in each without replacement
    (Cochran 1977, 5.3). Every stratum has at least one value.

    `least` and `most` are what a value can be. Where all that were drawn are the same, the spread is not nothing: then
    it is what it would be had one more value been as far away as can be. A value may stand for several: then `weights`
    are how many each does that was drawn, and `totals` how many those of a stratum do together (a ratio estimate,
    6.10). `chance`: values are drawn anew in the population, so that not even those that were seen are known.
    """
    weights, totals = weights or [[1.0] * len(values) for values in strata], totals or sizes
    total, drawn = sum(totals), [value for values in strata for value in values]
    means = [
        sum(map(float.__mul__, values, weight)) / sum(weight) for values, weight in zip(strata, weights, strict=True)
    ]
    mean = sum(map(float.__mul__, map(float, totals), means)) / total
    if len(drawn) == sum(sizes) and not chance:
        return Estimate(mean)
    pooled = _variance_within(strata, drawn, least, most)
    variance = 0.0
    for values, weight, size, whole, middle in zip(strata, weights, sizes, totals, means, strict=True):
        spread = _spread(values, weight, middle) or pooled * (whole / size) ** 2
        count = len(values)
        variance += (size / total) ** 2 * (1 / count + (1 if chance else -1) / size) * spread
    return Estimate(mean, math.sqrt(variance), max(len(drawn) - len(strata), 1))


def _spread(values: Sequence[float], weights: Sequence[float], mean: float) -> float:
    """Of what the values of a stratum add to its sum, about what they would add were they all the mean."""
    if len(values) < 2:
        return 0.0
    squares = ((weight * (value - mean)) ** 2 for value, weight in zip(values, weights, strict=True))
    return sum(squares) / (len(values) - 1)


def _variance_within(strata: Sequence[Sequence[float]], drawn: Sequence[float], least: float, most: float) -> float:
    """Pooled over the strata; of the sample with one more value where that is nothing."""
    squares = sum((value - statistics.fmean(values)) ** 2 for values in strata for value in values)
    freedom = len(drawn) - len(strata)
    if squares and freedom:
        return squares / freedom
    value = drawn[0] if freedom else statistics.fmean(drawn)
    farthest = least if value - least >= most - value else most
    return statistics.variance([*drawn, farthest])


def clustered_mean(clusters: Sequence[Sequence[float]], population: int) -> Estimate:
    """The mean over `population` values, from runs of neighbours taken all over them: runs are alike inside, so that it
    is they that count as drawn (Cochran 1977, 9A). All values: it is known."""
    sizes = [len(cluster) for cluster in clusters]
    count = sum(sizes)
    mean = sum(map(sum, clusters)) / count
    if count >= population:
        return Estimate(mean)
    if len(clusters) < 2:
        return Estimate(mean, abs(mean), 1)
    average = count / len(clusters)
    squares = sum((sum(cluster) - size * mean) ** 2 for cluster, size in zip(clusters, sizes, strict=True))
    spread = squares / (len(clusters) - 1) / average**2
    error = math.sqrt(spread / len(clusters) * (1 - count / population))
    return Estimate(mean, error, len(clusters) - 1)


def share(hits: int, count: int, population: int, effect: float = 1.0) -> tuple[float, float, float]:
    """The share of a population that has something, seen `hits` times among `count` of it: value, from, to.

    Wilson's interval (1927), corrected for a population that is not endless. All of it seen: it is known. `effect` is
    how many times as much the share varies as one of rows that were drawn one by one (`design_effect`).
    """
    if count >= population:
        return (hits / count,) * 3 if count else (0.0,) * 3
    seen = hits / count
    effective = count * (population - 1) / (population - count) / effect
    weight = Z**2 / effective
    centre = (seen + weight / 2) / (1 + weight)
    half = Z / (1 + weight) * math.sqrt(seen * (1 - seen) / effective + weight / (4 * effective))
    low = hits / population  # so many there are for certain
    return (
        seen,
        max(centre - half, low) if hits else 0.0,
        min(max(centre + half, seen), 1 - (count - hits) / population),
    )


def design_effect(clusters: Sequence[Sequence[float]], population: int) -> float:
    """How many times the variance of a share is what it would be, had its rows been drawn one by one (Kish 1965): of
    runs of neighbours, which are alike. At least 1; clusters hold 0 or 1 for each of their rows."""
    count = sum(map(len, clusters))
    mean = sum(map(sum, clusters)) / max(count, 1)
    if count >= population or len(clusters) < 2 or not 0 < mean < 1:
        return 1.0
    alone = mean * (1 - mean) / count * (1 - count / population)
    return max(clustered_mean(clusters, population).error ** 2 / alone, 1.0)


def spread_of_sums(ratios: Sequence[float]) -> float:
    """The standard deviation of measured over expected times, each of a like stretch of work; 0: too few to tell."""
    return statistics.stdev(ratios) if len(ratios) > 2 else 0.0
