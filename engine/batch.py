"""Batch: what the scheduler decided and the runner computes. The two meet here and nowhere else. No torch here."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from engine.sequence import Sequence


@dataclass(frozen=True, slots=True)
class Slice:
    """Compute the tokens [start, stop) of a sequence. Prefill chunk, decode and draft verification are all this."""

    sequence: Sequence
    start: int
    stop: int

    @property
    def num_tokens(self) -> int:
        return self.stop - self.start


@dataclass(frozen=True, slots=True)
class Batch:
    """The slices of one step."""

    slices: tuple[Slice, ...]

    def __iter__(self) -> Iterator[Slice]:
        return iter(self.slices)

    def __len__(self) -> int:
        return len(self.slices)

    @property
    def num_tokens(self) -> int:
        return sum(piece.num_tokens for piece in self.slices)
