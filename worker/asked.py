"""Asked: rows that the engine has, and what their answers lead to: a result, or further requests of the same row."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Generator
from dataclasses import dataclass, field

from engine.request import Output, Request
from worker.rows import Asking, Result, RowMaker


@dataclass(frozen=True, slots=True)
class Answered:
    """A row that is done. `further`: what it asked for after its first answers."""

    row: int
    result: Result
    reused: bool  # every answer was another request's
    further: tuple[Request, ...]


@dataclass(slots=True)
class _Open:
    asking: Asking
    outputs: dict[int, Output] = field(default_factory=dict)  # of its requests
    reused: bool = True  # as far as its answers are there
    further: tuple[Request, ...] = ()


class AskedRows:
    def __init__(self, maker: RowMaker) -> None:
        self._maker = maker
        self._rows: dict[int, _Open] = {}
        self._further: deque[Request] = deque()  # not given out yet

    def __contains__(self, row: int) -> bool:
        return row in self._rows

    def ask(self, row: int, asking: Asking) -> tuple[Request, ...]:
        """The row's first requests, which the caller gives out."""
        self._rows[row] = _Open(asking)
        return asking.requests

    def with_further(self, first: Generator[Request | None, None, None]) -> Generator[Request | None, None, None]:
        """All requests of the rows; `first` gives each row's first ones. What a row asks for later goes before the
        first requests of later rows. None: there is nothing until another answer was taken."""
        with contextlib.closing(first):
            for request in first:
                while self._further:
                    yield self._further.popleft()
                yield request
        while self._rows:
            yield self._further.popleft() if self._further else None

    def take(self, output: Output) -> Answered | None:
        """Put an answer to its row; None: the row is not done."""
        # The row index that the request was made with; beside it which of the row's requests it is, if it has several.
        row, place = output.id if isinstance(output.id, tuple) else (output.id, 0)
        assert isinstance(row, int), row
        assert isinstance(place, int), place
        opened = self._rows[row]
        assert place not in opened.outputs, f"request {place} of row {row} is answered twice"
        opened.outputs[place] = output
        opened.reused &= output.reused
        if len(opened.outputs) < len(opened.asking.requests):
            return None
        answer = self._maker.answer(opened.asking, [opened.outputs[place] for place in sorted(opened.outputs)])
        if isinstance(answer, Result):
            del self._rows[row]
            return Answered(row, answer, opened.reused, opened.further)
        opened.asking, opened.outputs = answer, {}
        opened.further += answer.requests
        self._further.extend(answer.requests)
        return None
