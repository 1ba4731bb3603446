"""What samples say: exact values, and intervals that hold as often as they say."""

from __future__ import annotations

import math
import random

import pytest

from db.quantiles import quantile
from worker.intervals import Estimate, clustered_mean, design_effect, share, spread_of_sums, stratified_mean


@pytest.mark.parametrize(("freedom", "t"), [(1, 3.0777), (2, 1.8856), (3, 1.6377), (10, 1.3722), (56, 1.2969)])
def test_quantiles_of_students_t(freedom: float, t: float) -> None:
    """The values of the tables."""
    assert quantile(freedom) == pytest.approx(t, rel=0.04 if freedom == 2 else 0.003)
    assert quantile(math.inf) == pytest.approx(1.28155, abs=1e-5)


def test_a_stratified_mean() -> None:
    """Cochran 1977, 5.3 by hand: 0.75 * 2 + 0.25 * 10, and the variances 0.75² * 2/2 * (1 - 2/6), 0.25² * 8/2 * 0."""
    found = stratified_mean([[1.0, 3.0], [8.0, 12.0]], [6, 2], 0, 100)
    assert (found.value, found.freedom) == (4.0, 2)
    assert found.error == pytest.approx(math.sqrt(0.75**2 * 2 / 2 * (1 - 2 / 6)))


def test_all_that_there_are_leave_no_doubt() -> None:
    assert stratified_mean([[1.0, 3.0], [8.0]], [2, 1], 0, 100) == Estimate(4.0)
    assert clustered_mean([[1.0, 2.0], [3.0]], 3) == Estimate(2.0)
    assert share(3, 10, 10) == (0.3, 0.3, 0.3)
    assert share(0, 0, 0) == (0.0, 0.0, 0.0)


def test_equal_values_are_not_certain_unless_nothing_else_is_possible() -> None:
    doubtful = stratified_mean([[64.0] * 8], [1000], 1, 64)
    assert doubtful.value == 64.0
    assert doubtful.error == pytest.approx(math.sqrt((63 / 9) ** 2 * 9 / 8 * (1 - 8 / 1000)))
    assert stratified_mean([[64.0] * 8], [1000], 64, 64).error == 0.0


def test_a_clustered_mean() -> None:
    """Runs of 2 with the sums 2 and 6: their means 1 and 3 vary by 2, of which half is left in the mean's variance."""
    found = clustered_mean([[1.0, 1.0], [3.0, 3.0]], 400)
    assert (found.value, found.freedom) == (2.0, 1)
    assert found.error == pytest.approx(math.sqrt(2 / 2 * (1 - 4 / 400)))
    assert clustered_mean([[5.0]], 10) == Estimate(5.0, 5.0, 1)


def test_a_share_that_was_not_seen_is_possible() -> None:
    value, low, high = share(0, 64, 10**9)
    assert (value, low) == (0.0, 0.0)
    assert high == pytest.approx(1.6424 / (64 + 1.6424), rel=1e-3)
    value, low, high = share(64, 64, 10**9)
    assert (value, high) == (1.0, 1.0)
    assert share(2, 64, 128)[1] >= 2 / 128


def test_sums() -> None:
    total = Estimate(10.0, 3.0, 5).plus(Estimate(5.0, 4.0, 5))
    assert (total.value, total.error) == (15.0, 5.0)
    assert total.freedom == pytest.approx(625 / (81 / 5 + 256 / 5))
    assert Estimate(10.0).plus(Estimate(5.0)).interval() == (15.0, 15.0)
    half = 2 * 1.28155
    around = 20 * math.exp(-half / 20), 20 + half
    assert Estimate(10.0, 1.0).times(2).interval() == pytest.approx(around, abs=1e-4)
    assert 0 < Estimate(0.004, 0.02).interval()[0] < 0.004
    assert Estimate(0.0).interval() == (0.0, 0.0)


def test_spreads() -> None:
    assert spread_of_sums([1.0, 2.0]) == 0.0
    assert spread_of_sums([1.0, 2.0, 3.0]) == 1.0


def test_four_of_five_intervals_hold_for_answers_that_are_cut_short() -> None:
    """Lengths of an exponential law, cut at 96 tokens: 64 of 1,000 in 8 strata, 400 times."""
    draw, held = random.Random(7), 0
    for _ in range(400):
        population = [min(1 + int(draw.expovariate(1 / 60)), 96) for _ in range(1000)]
        strata = [population[part * 125 : (part + 1) * 125] for part in range(8)]
        found = stratified_mean([[float(v) for v in draw.sample(s, 8)] for s in strata], [125] * 8, 1, 96)
        low, high = found.interval()
        held += low <= sum(population) / 1000 <= high
    assert held == pytest.approx(320, abs=25)


def test_a_value_that_stands_for_several() -> None:
    """Cochran 1977, 6.10 by hand: 0.75 * (3 * 2 + 1 * 6) / 4 + 0.25 * 10 of 30 and 10; residuals 3 * -1 and 1 * 3."""
    found = stratified_mean([[2.0, 6.0], [10.0]], [6, 1], 0, 100, weights=[[3.0, 1.0], [10.0]], totals=[30.0, 10.0])
    assert found.value == pytest.approx(0.75 * 3 + 0.25 * 10)
    assert found.error == pytest.approx(math.sqrt((6 / 40) ** 2 * (1 / 2 - 1 / 6) * (9 + 9)))


def test_what_is_drawn_anew_is_not_known_by_having_been_seen() -> None:
    values = [[4.0, 8.0], [5.0, 7.0]]
    assert stratified_mean(values, [2, 2], 0, 9).error == 0.0
    found = stratified_mean(values, [2, 2], 0, 9, chance=True)
    assert found.error == pytest.approx(math.sqrt(0.25 * (8 + 2)))


def test_shares_of_runs_that_are_alike_inside_are_less_certain() -> None:
    mixed, blocks = [[0.0, 1.0, 0.0, 0.0]] * 8, [[1.0] * 4] * 2 + [[0.0] * 4] * 6
    assert design_effect(mixed, 10**6) == 1.0
    assert design_effect(blocks, 10**6) == pytest.approx(4 * 8 / 7, rel=1e-3)
    assert design_effect(blocks, 32) == design_effect([[0.0] * 4] * 8, 10**6) == 1.0
    _, low, high = share(8, 32, 10**6)
    _, lower, higher = share(8, 32, 10**6, design_effect(blocks, 10**6))
    assert lower < low < high < higher
