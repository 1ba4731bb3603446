"""Step: a Batch in numbers, as they are sent to where the model runs."""

from __future__ import annotations

from itertools import chain
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from engine.batch import Batch

Numbers = NDArray[np.int32]


class Step(NamedTuple):
    """T tokens of S slices, one after the other. Arrays are int32."""

    query_starts: Numbers  # [S + 1], the first token of each slice
    context_lengths: Numbers  # [S], positions up to the slice's last token
    owned: Numbers  # [S], tokens of the sequence without its draft
    logit_starts: Numbers  # [S + 1], the first row of logits of each slice
    tokens: Numbers  # [T], UNREAD for what the device chose last in the slice's row
    rows: Numbers  # [S], where the device keeps what it knows of the slice's sequence
    block_tables: Numbers  # [S, most blocks], filled up with 0
    copies: tuple[tuple[int, int], ...] = ()  # see Batch

    @property
    def arrays(self) -> tuple[Numbers, ...]:
        return self[:7]

    @property
    def num_logits(self) -> int:
        return int(self.logit_starts[-1])

    @classmethod
    def of(cls, batch: Batch) -> Step:
        """Of a batch of at least one slice."""
        slices = batch.slices
        stops = np.array([stop for _, _, stop in slices], np.int32)
        counts = stops - np.array([start for _, start, _ in slices], np.int32)
        owned = np.array([len(sequence.tokens) for sequence, _, _ in slices], np.int32)
        # Slice.num_logits for the whole batch at once.
        logits = np.maximum(stops - np.maximum(stops - counts, owned - 1), 0)
        tokens = chain.from_iterable(sequence.known(start, stop) for sequence, start, stop in slices)
        return cls(
            _running(counts), stops, owned, _running(logits),
            np.fromiter(tokens, np.int32, int(counts.sum())),
            np.array([sequence.row for sequence, _, _ in slices], np.int32), _block_tables(batch), batch.copies,
        )  # fmt: skip


def _running(counts: Numbers) -> Numbers:
    """0 and the running sums."""
    return np.concatenate(([0], counts.cumsum())).astype(np.int32)


def _block_tables(batch: Batch) -> Numbers:
    """The slices' block tables, copied row by row without a Python loop over blocks."""
    lengths = np.array([len(sequence.blocks) for sequence, _, _ in batch.slices])
    flat = np.frombuffer(b"".join([sequence.blocks for sequence, _, _ in batch.slices]), np.int32)
    tables = np.zeros((len(lengths), lengths.max()), np.int32)
    tables[np.arange(tables.shape[1]) < lengths[:, None]] = flat
    return tables
