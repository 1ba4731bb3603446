"""Batch: what the scheduler decided and the runner computes. The two meet here and nowhere else. No torch here."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from engine.request import TokenLogprobs
from engine.sequence import Sequence


class Slice(NamedTuple):
    """Compute the tokens [start, stop) of a sequence. Prefill chunk, decode and draft verification are all this."""

    sequence: Sequence
    start: int
    stop: int

    @property
    def num_tokens(self) -> int:
        return self.stop - self.start

    @property
    def num_logits(self) -> int:
        """How many of the slice's last tokens need logits: the last of prompt and output, and the draft."""
        return max(self.stop - max(self.start, len(self.sequence.tokens) - 1), 0)


@dataclass(frozen=True, slots=True)
class Batch:
    """The slices of one step."""

    slices: tuple[Slice, ...]
    copies: tuple[tuple[int, int], ...] = ()  # blocks to copy before anything is computed: (from, to)

    def __iter__(self) -> Iterator[Slice]:
        return iter(self.slices)

    def __len__(self) -> int:
        return len(self.slices)

    @property
    def num_tokens(self) -> int:
        return sum(stop - start for _, start, stop in self.slices)

    @property
    def num_logits(self) -> list[int]:
        """Of each slice, see Slice.num_logits."""
        counts = []
        for sequence, start, stop in self.slices:
            last = len(sequence.tokens) - 1
            counts.append(stop - start if start >= last else max(stop - last, 0))
        return counts


class Sampled(NamedTuple):
    """What a step found out for one slice.

    `tokens` follow the sequence's output: the part of the draft that the model agrees with, then one token of its own.
    They are empty for a slice without logits, for a sequence with choices (its scores are recorded where they belong)
    and where `valid` is false: the model's logits were not numbers.
    """

    tokens: list[int]
    logprobs: list[TokenLogprobs] | None = None  # of tokens, where the request asks
    valid: bool = True


NOTHING = Sampled([])
INVALID = Sampled([], valid=False)
