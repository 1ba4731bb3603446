"""Suspects: a row that kills is found by halving, whatever lies around it, and only that row."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worker.suspects import CAREFUL_ROWS, MOST_ALONE, EngineBroken, Suspects


def work(rows: range, poison: set[int], limit: int = 1000) -> tuple[set[int], set[int], int]:
    """Attempts until one gets through: rows done, rows set aside, and how many attempts died in a careful group."""
    done: set[int] = set()
    aside: set[int] = set()
    begun: list[tuple[int, int]] = []
    for deaths in range(limit):
        open_rows = [row for row in rows if row not in done and row not in aside]
        suspects = Suspects.among(open_rows, begun, careful=True)
        aside |= suspects.poison
        left = [row for row in open_rows if row not in aside]
        died = False
        group: list[int] = []
        while left and not died:
            group = list(suspects.next_group(left))
            assert group == left[: len(group)]
            died = not poison.isdisjoint(group)
            if not died:
                done |= set(group)
                left = left[len(group) :]
        if not died:
            return done, aside, deaths
        begun.append((group[0], group[-1] + 1))
    raise AssertionError("no end")


def test_a_row_is_found_by_halving() -> None:
    rows = range(100, 400)
    done, aside, deaths = work(rows, {257})
    assert (aside, done) == ({257}, set(rows) - {257})
    assert deaths <= 7  # 32, 16, 8, 4, 2, 1, 1


@given(poison=st.sets(st.integers(0, 99), max_size=6))
def test_exactly_the_poisonous_rows_are_set_aside(poison: set[int]) -> None:
    done, aside, deaths = work(range(100), poison)
    assert aside == poison
    assert done == set(range(100)) - poison
    assert deaths <= 7 * len(poison)


def test_a_row_that_died_once_among_others_is_not_condemned() -> None:
    suspects = Suspects.among(range(10), [(0, 4), (2, 4)], careful=False)
    assert (suspects.careful, suspects.poison) == (True, frozenset())
    assert suspects.next_group([0, 1, 2, 3, 4]) == [0, 1]
    assert suspects.next_group([2, 3, 4]) == [2]
    assert suspects.next_group(list(range(4, 90))) == list(range(4, 4 + CAREFUL_ROWS))


def test_a_row_that_died_alone_once_is_tried_again() -> None:
    """By chance: a lost lease, a process that was killed."""
    once = Suspects.among(range(10), [(0, 10), (4, 5)], careful=False)
    assert (once.careful, once.poison) == (True, frozenset())
    assert once.next_group([4, 5, 6]) == [4]
    twice = Suspects.among(range(10), [(0, 10), (4, 5), (4, 5)], careful=False)
    assert twice.poison == {4}


def test_an_attempt_that_ended_well_blames_nothing_and_the_next_one_stays_careful() -> None:
    assert Suspects.among(range(10), [(0, 0)], careful=False) == Suspects(careful=True)


def test_nothing_is_suspected_at_first() -> None:
    assert Suspects.among([], [], careful=False) == Suspects(careful=False)


def test_when_row_after_row_dies_it_is_not_the_rows() -> None:
    with pytest.raises(EngineBroken, match=f"so often that {MOST_ALONE + 1} rows"):
        work(range(100), set(range(100)))
