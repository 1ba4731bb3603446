"""The budget: which guesses are worth their verification."""

from __future__ import annotations

import numpy as np
import pytest

from engine.drafter.budget import Load, choose, weigh
from engine.drafter.costs import StepCosts

# A step costs 10 whatever its size and 1 for each token: another row of 10 costs 1, and its part of the 10.
LINEAR = StepCosts(((1, 11.0), (1001, 1011.0)))


def seconds(costs: StepCosts, tokens: int, drafts: int = 0) -> float:
    return float(costs.seconds(np.array([tokens]), np.array([drafts]))[0])


def test_costs_are_straight_lines_between_points_and_beyond() -> None:
    costs = StepCosts(((1, 1.0), (3, 2.0), (5, 6.0)), per_draft=0.5)
    assert [seconds(costs, tokens) for tokens in (1, 2, 3, 4, 5, 7)] == [1.0, 1.5, 2.0, 4.0, 6.0, 10.0]
    assert seconds(costs, 3, drafts=4) == 4.0
    assert seconds(StepCosts(((1, 2.0),)), 9) == 2.0


@pytest.mark.parametrize(
    ("rows", "chance", "verified"),
    [
        (1, 0.08, 0),  # a token of the only row saves 11 and costs 1
        (1, 0.1, 1),
        (10, 0.49, 0),  # one of ten rows saves 1 + 10 / 10
        (10, 0.51, 1),
        (1000, 0.98, 0),
        (1000, 1.0, 1),
    ],
)
def test_a_token_is_verified_where_it_saves_more_than_it_costs(rows: int, chance: float, verified: int) -> None:
    assert choose([[chance]], [1.0], Load(rows, rows), LINEAR).counts == [verified]


def test_the_likeliest_tokens_of_all_drafts_are_taken() -> None:
    survivals = [[0.9, 0.6, 0.3], [0.7, 0.45], [], [0.5]]
    assert choose(survivals, [1.0] * 4, Load(10, 10), LINEAR).counts == [2, 1, 0, 0]
    assert choose(survivals, [1.0] * 4, Load(5, 5), LINEAR).counts == [2, 2, 0, 1]
    assert choose(survivals, [1.0] * 4, Load(2, 2), LINEAR).counts == [3, 2, 0, 1]


def test_a_token_behind_an_unlikely_one_can_still_pay_together() -> None:
    knee = StepCosts(((1, 10.0), (10, 10.9), (11, 14.0), (20, 14.1)))  # the eleventh token is dear, more are not
    assert choose([[0.95]], [1.0], Load(10, 10), knee).counts == [0]
    assert choose([[0.95] * 9], [1.0], Load(10, 10), knee).counts == [9]


def test_what_a_draft_costs_beyond_its_tokens_counts() -> None:
    dear = StepCosts(LINEAR.points, per_draft=1.0)
    assert choose([[0.9]], [1.0], Load(10, 10), dear).counts == [0]
    assert choose([[0.9] * 4], [1.0], Load(10, 10), dear).counts == [4]


def test_time_for_prompts_is_no_part_of_the_bargain() -> None:
    assert choose([[0.51]], [1.0], Load(10, 500), LINEAR).counts == [1]
    assert choose([[0.49]], [1.0], Load(10, 500), LINEAR).counts == [0]


def test_without_drafts_nothing_is_chosen() -> None:
    assert choose([], [], Load(1, 1), LINEAR).counts == []
    assert choose([[], []], [1.0, 1.0], Load(2, 2), LINEAR).counts == [0, 0]


def test_weights_are_even_while_rows_wait_and_favour_the_last_ones_after() -> None:
    assert weigh([5, 50], Load(2, 2)) == [1.0, 1.0]
    behind, ahead = weigh([50, 25], Load(2, 2, others=()))
    assert behind + ahead == pytest.approx(2.0)
    assert ahead < 1e-4
    assert weigh([50, 50], Load(2, 2, others=(50, 50))) == [0.5, 0.5]
    assert weigh([1], Load(1, 1, others=())) == [1.0]
