"""Settling: what a computed step means for its sequences, and what they may guess next. No torch here."""

from __future__ import annotations

import time
from collections.abc import Iterable
from collections.abc import Sequence as Items

from engine.batch import Sampled, Slice
from engine.counters import Counters
from engine.drafter import Speculation
from engine.drafter.budget import Load
from engine.request import FinishReason
from engine.scheduler import Scheduler
from engine.sequence import Sequence
from engine.stops import Stops, commit


class Settling:
    """Appends what was found out, ends what ends, and keeps the drafters up to date."""

    def __init__(self, stops: Stops, speculation: Speculation | None, counters: Counters, most_sequences: int) -> None:
        """`most_sequences`: that run at once."""
        self._stops = stops
        self._speculation = speculation
        self._counters = counters
        self._most_sequences = most_sequences

    def begin(self, sequence: Sequence, load: Load) -> None:
        """Put what the format forces at the very beginning behind the prompt, so that one pass computes both."""
        if sequence.request.forced == "commit":
            committed = commit(sequence)
            self._counters.forced_tokens += committed
            self._counters.output_tokens += committed
        elif self._speculation is not None:
            self._speculation.propose([sequence], load)

    def advance(self, piece: Slice, num_logits: int, sampled: Sampled) -> bool:
        """Settle one slice of a computed batch. Returns whether its output grew and goes on."""
        sequence = piece.sequence
        if sequence.prefilled is None and piece.stop >= sequence.num_prompt:
            sequence.prefilled = time.perf_counter()
        if not sampled.valid:
            sequence.error = ("invalid_logits", "the model's logits are not finite numbers")
            sequence.finish(FinishReason.ERROR)
        elif sequence.scoring is not None:
            if not sequence.pending:
                sequence.walk()
        elif sampled.tokens:
            if num_logits > 1 and self._speculation is not None:
                self._speculation.settle(sequence, num_logits - 1, len(sampled.tokens) - 1)
            before = len(sequence.tokens)
            self._stops.accept(sequence, sampled)
            if sequence.request.forced == "commit" and sequence.finish_reason is None:
                self._counters.forced_tokens += commit(sequence)
            self._counters.output_tokens += len(sequence.tokens) - before
            return sequence.finish_reason is None
        return False

    def may_wait(self, num_rows: int) -> bool:
        """Whether nothing is lost by planning the next step before this one's tokens of so many rows are settled."""
        return self._speculation is None or self._speculation.rests(num_rows)

    def guess(self, ready: Items[Sequence], scheduler: Scheduler, everyone: Iterable[Sequence], *, alone: bool) -> None:
        """Draft for those that go on with a token each. `alone`: a device waits for it."""
        if self._speculation is None or not ready:
            return
        others = None
        if scheduler.num_running + scheduler.num_waiting <= self._most_sequences:
            own = {sequence.request.id for sequence in ready}
            others = [each.draft_room + 1 for each in everyone if each.request.id not in own]
        self._speculation.propose(ready, Load(len(ready), scheduler.num_expected, others, alone=alone))

    def forget(self, sequence: Sequence) -> None:
        """The sequence has ended."""
        if self._speculation is not None:
            self._speculation.finish(sequence)
