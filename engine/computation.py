"""Computation: a planned batch through the model, beside it what formats allow, and the tokens chosen."""

from __future__ import annotations

from engine.batch import Batch, Sampled
from engine.clock import Clock
from engine.counters import Counters
from engine.grammar.masks import Masks
from engine.runner import Runner
from engine.sampler import Sampler, settle


class Computation:
    """What a step does between planning and settling. Reports its parts to the clock."""

    def __init__(self, runner: Runner, sampler: Sampler, masks: Masks | None, clock: Clock, counters: Counters) -> None:
        self._runner = runner
        self._sampler = sampler
        self._masks = masks
        self._clock = clock
        self._counters = counters

    def run(self, batch: Batch) -> list[Sampled]:
        """Compute a batch of at least one slice. One Sampled per slice."""
        clock = self._clock
        pending = self._masks.start(batch) if self._masks is not None else None
        clock.lap("masks")
        prepared = self._runner.prepare(batch)
        clock.lap("inputs")
        hidden = self._runner.run(prepared)
        clock.lap("model")
        masks = None
        if pending is not None:
            masks, seconds = pending.wait()
            self._counters.mask_seconds += seconds
            clock.lap("masks")
        if all(piece.sequence.plain for piece in batch.slices):
            most, tokens = self._runner.largest(hidden, masks)
            clock.lap("model")
            sampled = settle(most, tokens, batch)
        else:
            logits = self._runner.logits(hidden, masks)
            clock.lap("model")
            sampled = self._sampler.sample(logits, batch)
        clock.lap("sample")
        return sampled

    def close(self) -> None:
        """Let go of the model and the cache. Nothing can be computed afterwards."""
        del self._runner
        if self._masks is not None:
            self._masks.close()
