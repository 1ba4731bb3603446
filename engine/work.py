"""Work: what a step computes, in the numbers that its cost depends on. No torch here."""

from __future__ import annotations

from collections.abc import Sequence as Items
from typing import NamedTuple

from engine.batch import Batch


class Work(NamedTuple):
    """Of one step, or the sum over some. A step's own numbers are what the model's parts are proportional to."""

    tokens: int  # that go through the layers
    sequences: int  # slices
    context: int  # positions whose keys and values are read, once for each slice
    attended: int  # positions that each token sees, summed over the tokens; equal to `context` where slices are of one
    rows: int  # that go through the language-model head

    @classmethod
    def of(cls, batch: Batch, num_logits: Items[int]) -> Work:
        """Of a planned batch, before its tokens are appended. `num_logits`: Batch.num_logits."""
        tokens = context = attended = 0
        for _, start, stop in batch.slices:
            count = stop - start
            tokens += count
            context += stop
            attended += stop if count == 1 else count * (start + stop + 1) // 2
        return cls(tokens, len(batch.slices), context, attended, sum(num_logits))

    def plus(self, other: Work) -> Work:
        return Work(*(mine + theirs for mine, theirs in zip(self, other, strict=True)))


NO_WORK = Work(0, 0, 0, 0, 0)
