"""The end of a job: what is known of it, when nothing is, and how sure the estimate is."""

from __future__ import annotations

import random
from itertools import accumulate

import pytest

from db.eta import END_SECONDS, HORIZON_SECONDS, START_SECONDS, End, Milestone, end_of


def even(rows: int, seconds: float, steps: int) -> list[Milestone]:
    """From second 100 on; the rows begin when everything is open."""
    rest = [Milestone(100 + seconds * step / steps, rows * step / steps) for step in range(1, steps + 1)]
    return [Milestone(100 - START_SECONDS, 0), *rest]


def width(end: End | None) -> float:
    assert end is not None
    assert end.earliest <= end.at <= end.latest
    return end.latest - end.earliest


@pytest.mark.parametrize(
    "course", [[], [Milestone(5, 0)], [Milestone(5, 0), Milestone(9, 0)], [Milestone(5, 3), Milestone(9, 2)]]
)
def test_nothing_is_known_of_a_job_that_has_not_got_on(course: list[Milestone]) -> None:
    assert end_of(course, 10, 0, 10.0, 4) is None


def test_an_even_job_ends_as_it_went_on_and_the_interval_narrows() -> None:
    widths = []
    for tenths in range(1, 10):
        end = end_of(even(1000, 600, 60)[: 6 * tenths + 1], 1000, 0, 100 + 60 * tenths, 0)
        assert end is not None
        assert end.at == pytest.approx(100 + 600 + END_SECONDS)
        widths.append(width(end))
    assert widths == sorted(widths, reverse=True)
    assert widths[0] > 100  # honest while little is known: a sixth of the whole
    assert widths[-1] < 30


def test_an_uneven_job_is_less_sure() -> None:
    course = even(500, 300, 8)
    rough = [Milestone(each.at + 12 * (place % 2), each.rows) for place, each in enumerate(course)]
    assert width(end_of(rough, 1000, 0, 400, 0)) > 1.3 * width(end_of(course, 1000, 0, 400, 0))


def test_what_is_left_is_known_in_bytes() -> None:
    """Ten rows of one byte each took a second each, and ten of ten bytes ten; of such a hundred are left."""
    times, sizes = ([0.0, *accumulate(each)] for each in ([1] * 10 + [10] * 10, [1] * 10 + [10] * 10))
    course = [Milestone(at, row, size) for row, (at, size) in enumerate(zip(times, sizes, strict=True))]
    course[0] = Milestone(-START_SECONDS, 0)
    by_rows, by_bytes = end_of(course, 120, 0, 110, 0), end_of(course, 120, 1110, 110, 0)
    assert by_rows is not None
    assert by_bytes is not None
    assert by_rows.at == pytest.approx(110 + 100 * 5.5 + END_SECONDS)
    assert by_bytes.at == pytest.approx(110 + 100 * 10, rel=0.05)
    assert by_bytes.earliest < 1111 < by_bytes.latest
    assert by_rows.latest < 1111


def test_lengths_that_tell_nothing_are_left_aside() -> None:
    """Every row takes a second, however long it is, and the long ones are left."""
    draw = random.Random(3)
    sizes = [*accumulate(draw.choice((1, 20)) for _ in range(80))]
    course = [Milestone(row + 1.0, row + 1.0, size) for row, size in enumerate(sizes)]
    end = end_of([Milestone(-START_SECONDS, 0.0), *course], 160, sizes[-1] + 80 * 20, 80, 0)
    assert end is not None
    assert end.at == pytest.approx(160, rel=0.1)


def test_rows_in_the_engine_are_half_done() -> None:
    """Of a hundred, ten are done after ten seconds and ten in the engine: as good as fifteen."""
    end = end_of([Milestone(-START_SECONDS, 0), Milestone(10, 10)], 100, 0, 10, 10)
    assert end is not None
    assert end.at == pytest.approx(10 + 85 * 10 / 15 + END_SECONDS)
    sure = end_of([Milestone(-START_SECONDS, 0), Milestone(10, 15)], 100, 0, 10, 0)
    assert width(end) > width(sure)


def test_rows_that_are_taken_back_for_a_while_do_not_count_twice() -> None:
    course = even(500, 300, 10)
    course[5:5] = [Milestone(course[4].at + 1, 10), Milestone(course[4].at + 2, 120)]
    end = end_of(course, 1000, 0, 400, 0)
    assert end is not None
    assert end.at == pytest.approx(700 + END_SECONDS)


def test_an_end_does_not_lie_in_the_past() -> None:
    end = end_of(even(1000, 600, 10), 1000, 0, 710.0, 0)
    assert end is not None
    assert (end.earliest, end.at) == (710.0, 710.0)
    stalled = end_of(even(500, 300, 10), 1000, 0, 5000.0, 0)
    assert stalled == End(5000.0, 5000.0, 5000.0)


def test_an_end_that_may_be_a_century_away_is_not_told() -> None:
    """Three rows in a week."""
    course, now = [Milestone(0, 0), Milestone(7 * 86_400, 3)], 7 * 86_400.0
    near = end_of(course, 10**3, 0, now, 0)
    assert near is not None
    assert now < near.at < near.latest < now + HORIZON_SECONDS
    for rows in (2 * 10**4, 10**7, 10**12):
        assert end_of(course, rows, 0, now, 0) is None


def test_a_course_of_one_great_leap_is_no_error() -> None:
    """Nearly all rows in a moment, and the last ones took ages: no variance is too much."""
    course = [Milestone(0, 0), Milestone(1e-6, 10**12), Milestone(1e9, 10**12 + 1)]
    assert end_of(course, 10**13, 10**15, 1e9, 10**6) is None


def test_bytes_that_do_not_grow() -> None:
    """Rows of nothing: their shards have bytes, and none of them is known to be done."""
    end = end_of([Milestone(0, 0), Milestone(5, 5), Milestone(10, 10)], 20, 1000, 10, 0)
    assert end is not None
    assert end.at > 15
