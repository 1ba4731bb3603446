"""ChoiceTree and Scoring: which paths are walked, and how log-probabilities add up."""

from __future__ import annotations

import pytest

from engine.choices import ChoiceTree, Scoring


@pytest.mark.parametrize(
    ("choices", "paths"),
    [
        (((1,), (2,)), ((),)),
        (((1, 2), (3,)), ((1,),)),
        (((1, 2), (3, 4)), ((1,), (3,))),
        (((1, 2, 3), (1, 2, 4), (1, 5, 6), (7,)), ((1, 2), (1, 5))),
        (((1,), (1, 2), (1, 2, 3)), ((1, 2),)),
    ],
)
def test_paths_are_the_deepest_inner_nodes(choices: tuple[tuple[int, ...], ...], paths: object) -> None:
    assert ChoiceTree(choices).paths == paths


def test_a_walk_keeps_what_the_next_path_shares_and_adds_up_every_choice() -> None:
    scoring = Scoring(ChoiceTree(((1, 2, 3), (1, 5, 6), (1, 2, 4))))
    assert scoring.path == (1, 2)
    assert [scoring.followers(depth) for depth in range(3)] == [(1,), (2, 5), (3, 4)]
    scoring.record(0, [-0.5])
    scoring.record(1, [-1.0, -2.0])
    scoring.record(2, [-4.0, -8.0])
    assert scoring.walk() == 1
    assert scoring.path == (1, 5)
    scoring.record(2, [-16.0])
    assert scoring.walk() is None
    assert scoring.totals() == (-5.5, -18.5, -9.5)


def test_choices_that_cannot_come_near_the_best_are_left_out() -> None:
    scoring = Scoring(ChoiceTree(((1, 2, 3), (4, 5, 6), (7, 8), (9,))), margin=10.0)
    assert scoring.path == (1, 2)
    scoring.record(0, [-2.0, -12.5, -11.5, -2.0])
    scoring.record(1, [-0.5])
    scoring.record(2, [-1.0])
    assert scoring.walk() == 0
    assert scoring.path == (7,)  # (4, 5) is 10.5 below the best already, (7,) 9.5
    scoring.record(1, [-3.0])
    assert scoring.walk() is None
    assert scoring.totals() == (-3.5, -12.5, -14.5, -2.0)


def test_a_margin_prunes_nothing_before_a_whole_choice_is_known() -> None:
    scoring = Scoring(ChoiceTree(((1, 2), (3, 4, 5))), margin=0.0)
    scoring.record(0, [-9.0, -0.1])
    scoring.record(1, [-0.5])
    assert scoring.walk() == 0
    scoring.record(1, [-0.1])
    scoring.record(2, [-0.1])
    assert scoring.walk() is None
    assert scoring.totals() == (-9.5, pytest.approx(-0.3))
