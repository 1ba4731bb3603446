"""Rows that the engine has: what they ask for later goes first, and each answer is put where it belongs."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any

import pytest

from engine.request import FinishReason, Output, Request
from worker.asked import Answered, AskedRows
from worker.rows import Asking, Result


class Twice:
    """Every row asks for two things, and then for a third one."""

    def answer(self, asking: Asking, outputs: Sequence[Output]) -> Result | Asking:
        if len(outputs) == 2:
            assert [output.id[1] for output in outputs] == [0, 1]  # type: ignore[index]
            return Asking((Request((outputs[0].id[0], 2), (9,)),))  # type: ignore[index]
        return Result({"output": "done"}, "stop")


def asking(row: int) -> Asking:
    return Asking(tuple(Request((row, place), (1,)) for place in range(2)))


def output(row: int, place: int, *, reused: bool = False) -> Output:
    return Output((row, place), (), FinishReason.STOP, 1, 0, 0, reused=reused)


@pytest.fixture
def rows() -> AskedRows:
    maker: Any = Twice()
    return AskedRows(maker)


def test_what_a_row_asks_for_later_goes_before_later_rows(rows: AskedRows) -> None:
    closed = []

    def first() -> Generator[Request | None, None, None]:
        try:
            for row in range(3):
                yield from rows.ask(row, asking(row))
        finally:
            closed.append(True)

    requests = rows.with_further(first())
    assert [next(requests).id for _ in range(2)] == [(0, 0), (0, 1)]  # type: ignore[union-attr]
    assert rows.take(output(0, 1)) is None
    assert rows.take(output(0, 0)) is None
    assert [next(requests).id for _ in range(5)] == [(0, 2), (1, 0), (1, 1), (2, 0), (2, 1)]  # type: ignore[union-attr]
    assert next(requests) is None  # nothing until an answer comes
    done = rows.take(output(0, 2))
    assert done == Answered(0, Result({"output": "done"}, "stop"), False, (Request((0, 2), (9,)),))
    assert [row in rows for row in range(3)] == [False, True, True]
    for row in (1, 2):
        assert [rows.take(output(row, place)) for place in range(2)] == [None, None]
    assert [next(requests).id for _ in range(2)] == [(1, 2), (2, 2)]  # type: ignore[union-attr]
    assert None not in (rows.take(output(1, 2)), rows.take(output(2, 2)))
    assert list(requests) == []
    assert closed == [True]


def test_requests_that_are_given_up_close_what_gives_them(rows: AskedRows) -> None:
    closed = []

    def first() -> Generator[Request | None, None, None]:
        try:
            yield from rows.ask(0, asking(0))
        finally:
            closed.append(True)

    requests = rows.with_further(first())
    next(requests)
    requests.close()
    assert closed == [True]


def test_a_row_is_reused_when_all_its_answers_are(rows: AskedRows) -> None:
    for row, fresh in ((0, None), (1, 0), (2, 2)):
        rows.ask(row, asking(row))
        done = [rows.take(output(row, place, reused=place != fresh)) for place in range(3)][-1]
        assert done is not None
        assert done.reused == (fresh is None)


def test_an_answer_that_comes_twice(rows: AskedRows) -> None:
    rows.ask(0, asking(0))
    rows.take(output(0, 1))
    with pytest.raises(AssertionError, match="request 1 of row 0 is answered twice"):
        rows.take(output(0, 1))
