"""Which rows a plan looks at, and which of them it computes."""

from __future__ import annotations

import random

from engine.request import Request
from worker.frame import MOST_ROWS, RUN_ROWS, Frame, Seen, distinct, runs_of, strata_of
from worker.rows import Asking


def seen(index: int, size: int, key: bytes | None = None) -> Seen:
    return Seen(index, Asking((Request(index, tuple(range(size))),)), None, key)


def test_a_small_input_is_read_whole() -> None:
    runs = runs_of(130, random.Random(1))
    assert sorted(runs) == [(0, 64), (64, 128), (128, 130)]
    assert runs_of(0, random.Random(1)) == []


def test_of_a_large_one_there_is_a_run_in_every_stretch() -> None:
    num_rows = 10_000_000
    runs = sorted(runs_of(num_rows, random.Random(1)))
    stretch = num_rows // (MOST_ROWS // RUN_ROWS)
    assert [start // stretch for start, _ in runs] == list(range(MOST_ROWS // RUN_ROWS))
    assert {stop - start for start, stop in runs} == {RUN_ROWS}
    assert sorted(runs_of(MOST_ROWS + 1, random.Random(1)))[-1][1] <= MOST_ROWS + 1


def test_strata_are_of_like_length_and_drawn_from_alike() -> None:
    rows = [seen(index, 1 + index * 37 % 100) for index in range(100)]
    strata = strata_of(rows, 16, random.Random(1))
    assert [len(stratum.rows) for stratum in strata] == [12, 13, 12, 13, 12, 13, 12, 13]
    assert [len(stratum.drawn) for stratum in strata] == [2] * 8
    lengths = [row.num_prompt for stratum in strata for row in stratum.rows]
    assert sorted(lengths) == lengths
    assert all(set(stratum.drawn) <= set(stratum.rows) for stratum in strata)


def test_a_sample_of_all_rows() -> None:
    strata = strata_of([seen(index, 5) for index in range(3)], 64, random.Random(1))
    assert sorted(row.index for stratum in strata for row in stratum.drawn) == [0, 1, 2]
    assert strata_of([], 64, random.Random(1)) == []


def test_equal_rows_are_computed_once_where_they_may() -> None:
    rows = [
        seen(0, 5, b"a"),
        seen(1, 5, b"b"),
        seen(2, 5, b"a"),
        seen(3, 5),
        seen(4, 5),
        Seen(5, None, "null_text", None),
    ]
    assert [row.index for row in distinct(rows, reuse=True)] == [0, 1, 3, 4]
    assert [row.index for row in distinct(rows, reuse=False)] == [0, 1, 2, 3, 4]


def test_a_whole_frame() -> None:
    assert Frame(((seen(0, 1), seen(1, 1)),), 2, 0.0).whole
    assert not Frame(((seen(0, 1), seen(1, 1)),), 3, 0.0).whole


def test_a_row_with_many_equals_is_always_computed() -> None:
    rows = [seen(0, 5, b"common"), *(seen(index, 5, b"common") for index in range(10, 1000))]
    rows += [seen(index, 50, bytes([index])) for index in range(1, 10)]
    first, *others = strata_of(distinct(rows, reuse=True), 4, random.Random(1))
    assert [(row.index, row.copies) for row in first.drawn] == [(0, 991)]
    assert first.rows == first.drawn
    assert sum(len(stratum.drawn) for stratum in others) == 3
    assert {row.copies for stratum in others for row in stratum.rows} == {1}
