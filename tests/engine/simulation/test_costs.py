"""FittedCost: prices that explain measured steps."""

from __future__ import annotations

import numpy as np
import pytest

from engine.simulation import FittedCost, Work, fit, fit_most
from engine.simulation.costs import non_negative

WORKS = [
    Work(tokens, sequences, context, attended, rows)
    for tokens, sequences, context, attended, rows in (
        (64, 64, 9000, 9000, 64), (1, 1, 300, 300, 1), (16, 16, 5000, 5000, 16), (1024, 3, 1100, 400_000, 3),
        (512, 40, 7000, 90_000, 38), (8, 8, 200, 200, 8), (64, 64, 30_000, 30_000, 64), (256, 1, 256, 32_896, 0),
    )
]  # fmt: skip


def test_prices_are_found_again() -> None:
    true = FittedCost((2e-3, 1e-3, 3e-5, 2e-7, 1e-8, 2e-4), 0.0)
    found = fit(WORKS, [true.seconds(work) for work in WORKS])
    assert found.prices == pytest.approx(true.prices, rel=1e-6)
    assert found.error < 1e-9
    assert fit_most(WORKS, [true.seconds(work) for work in WORKS]).prices == pytest.approx(true.prices, rel=1e-4)


def test_times_that_scatter_do_not_make_prices_low() -> None:
    """Of steps of two kinds, whose times scatter by a fifth, each costs what its kind does on average."""
    dice = np.random.default_rng(3)
    works = [Work(tokens, 1, 7, 7, 1) for tokens in (16, 512)]
    times = [0.015 * dice.gamma(25, 1 / 25, 200), 0.16 * dice.gamma(25, 1 / 25, 200)]
    found = fit([work for work in works for _ in range(200)], np.concatenate(times).tolist())
    assert [found.seconds(work) for work in works] == pytest.approx([each.mean() for each in times], rel=1e-3)


def test_no_price_is_negative() -> None:
    seconds = [0.1 - 1e-4 * work.sequences for work in WORKS]
    found = fit(WORKS, seconds)
    assert min(found.prices) >= 0.0
    assert 0 < found.error < 0.1


def test_least_squares_under_the_bound() -> None:
    """The residual is orthogonal to what is used, and would only grow by using the rest (Karush-Kuhn-Tucker)."""
    dice = np.random.default_rng(1)
    matrix, target = dice.normal(size=(30, 6)), dice.normal(size=30)
    found = non_negative(matrix, target)
    gains = matrix.T @ (target - matrix @ found)
    assert (found >= 0).all()
    assert np.abs(gains[found > 0]).max() < 1e-9
    assert gains[found == 0].max() <= 1e-9


def test_the_first_steps_of_an_engine_do_not_hide_what_the_others_agree_on() -> None:
    """Steps of one small job: a first one that took seven times its time, and six of one kind, which least squares take
    for a price of every step alone."""
    tokens = (272, 911, 888, 868, 623, 840, 741)
    works = [Work(count, count // 27, 2 * count, 50 * count, count // 27) for count in tokens]
    seconds = [1.962, 0.900, 0.875, 0.900, 0.636, 0.786, 0.698]
    assert fit(works, seconds).seconds(works[0]) > 0.7
    found = fit_most(works, seconds)
    assert found.seconds(works[0]) < 0.4
    assert [found.seconds(work) for work in works[1:]] == pytest.approx(seconds[1:], rel=0.1)


def test_many_steps_cost_their_sum() -> None:
    cost = FittedCost((0.5, 0.25, 0.125, 0.0625, 0.03125, 1.0), 0.0)
    one, other = WORKS[0], WORKS[6]
    assert cost.seconds(one.plus(other), 2) == cost.seconds(one) + cost.seconds(other)


def test_unusable_measurements_are_refused() -> None:
    with pytest.raises(ValueError, match="0 steps"):
        fit([], [])
    with pytest.raises(ValueError, match="1 steps and 2 times"):
        fit(WORKS[:1], [1.0, 2.0])
    with pytest.raises(ValueError, match="takes some time"):
        fit(WORKS[:1], [0.0])
