"""Order: what begins alike comes together, and what shares nothing stays where it is."""

from __future__ import annotations

import random

from worker.order import LEAST_SHARED, arranged

DOCUMENTS = [f"{number} {'word ' * 100}" for number in range(3)]


def test_texts_that_begin_alike_come_together_where_the_first_was() -> None:
    texts = [DOCUMENTS[2] + "why?", "alone", DOCUMENTS[0] + "how?", DOCUMENTS[2] + "when?", DOCUMENTS[0] + "ask"]
    assert arranged(texts) == [3, 0, 1, 4, 2]  # within a group by text: what is shared beyond the beginning meets too


def test_longer_beginnings_meet_within_shorter_ones() -> None:
    texts = [DOCUMENTS[0] + end for end in ("A a", "B a", "A b", "B b", "A c")]
    assert arranged(texts) == [0, 2, 4, 1, 3]


def test_texts_that_share_little_stay_where_they_are() -> None:
    few = "x" * (LEAST_SHARED - 1)
    assert arranged([few + end for end in "zyx"]) == [0, 1, 2]
    assert arranged([few + "x" + end for end in "zyx"]) == [2, 1, 0]
    long = "x" * LEAST_SHARED
    texts = [long + end * 1000 for end in "zyx"]  # an eighth of 1,128 characters is 141
    assert arranged(texts) == [0, 1, 2]


def test_equal_texts_come_together_in_their_order() -> None:
    assert arranged(["b", "a", "b", "a", ""]) == [0, 2, 1, 3, 4]


def test_every_place_comes_once() -> None:
    draw = random.Random(3)
    texts = [DOCUMENTS[draw.randrange(3)][: draw.randrange(500)] for _ in range(300)]
    assert sorted(arranged(texts)) == list(range(300))
    assert arranged([]) == []
