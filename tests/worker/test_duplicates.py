"""How many rows of a job a plan takes to be computed, where not all were read."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from engine.request import Request
from worker.duplicates import computed_rows
from worker.frame import Frame, Seen, runs_of
from worker.rows import Asking

NUM_ROWS = 100_000


def frame(key: Callable[[int], int | None], num_rows: int = NUM_ROWS) -> Frame:
    """What a plan reads of rows with such keys (none: left to chance)."""

    def seen(index: int) -> Seen:
        found = key(index)
        return Seen(index, Asking((Request(index, (1,)),)), None, None if found is None else found.to_bytes(4, "big"))

    runs = sorted(runs_of(num_rows, random.Random(5)))
    return Frame(tuple(tuple(map(seen, range(*run))) for run in runs), num_rows, 0.0)


def of(texts: int) -> Callable[[int], int]:
    """Texts that lie anywhere."""
    draw = random.Random(texts)
    keys = [draw.randrange(texts) for _ in range(NUM_ROWS)]
    return keys.__getitem__


@pytest.mark.parametrize(
    ("key", "truth", "within"),
    [
        (lambda index: index, NUM_ROWS, 0.01),
        (lambda index: None, NUM_ROWS, 0.01),
        (lambda index: index % 50, 50, 0.01),
        (of(2000), 2000, 0.1),
        (of(50_000), 50_000 * 0.865, 0.35),
        (lambda index: 0 if index % 10 < 3 else index, 70_000, 0.02),  # three in ten are the same text
        (lambda index: index // 8, NUM_ROWS // 8, 0.15),  # sorted: equal ones are neighbours
    ],
)
def test_of_what_was_not_read(key: Callable[[int], int | None], truth: float, within: float) -> None:
    assert computed_rows(frame(key), reuse=True).value == pytest.approx(truth, rel=within)
    assert computed_rows(frame(key), reuse=False).value == pytest.approx(NUM_ROWS)


def test_how_sure_that_is() -> None:
    few, many = computed_rows(frame(of(50_000)), reuse=True), computed_rows(frame(of(2000)), reuse=True)
    assert many.error / many.value < few.error / few.value < 0.3
    assert few.error > 0


def test_all_that_were_read_are_known() -> None:
    found = computed_rows(frame(lambda index: index % 7, 500), reuse=True)
    assert (found.value, found.error) == (7.0, 0.0)
