"""Limits: how much a step may compute. No torch here."""

from __future__ import annotations

import logging

from engine.batch import Batch
from engine.config import EngineConfig

log = logging.getLogger(__name__)
CALM = 256  # steps without a shortage, after which more is tried


class Limits:
    """What the configuration says; less after a step that there was no memory for, and by and by more again."""

    def __init__(self, config: EngineConfig) -> None:
        self._most_tokens, self._most_sequences = config.token_budget, config.max_sequences
        self.tokens, self.sequences = config.token_budget, config.max_sequences  # of a step
        self._calm = 0
        self.num_shortages = 0

    def shrink(self, batch: Batch) -> bool:
        """There was no memory for a batch. False: it cannot be any smaller."""
        self.num_shortages += 1
        self._calm = 0
        if batch.num_tokens == 1:
            return False
        self.tokens = max(batch.num_tokens // 2, 1)
        self.sequences = max(len(batch) // 2, 1)
        log.warning(
            "no memory for a step of %d tokens of %d sequences: from now on at most %d of %d",
            batch.num_tokens, len(batch), self.tokens, self.sequences,
        )  # fmt: skip
        return True

    def ease(self) -> None:
        """A step was computed."""
        if self.tokens == self._most_tokens and self.sequences == self._most_sequences:
            return
        self._calm += 1
        if self._calm >= CALM:
            self._calm = 0
            self.tokens = min(2 * self.tokens, self._most_tokens)
            self.sequences = min(2 * self.sequences, self._most_sequences)
