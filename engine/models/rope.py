"""Rotary frequencies of a model, and a table of their cosines and sines."""

from __future__ import annotations

import torch
from torch import Tensor

from engine.models.config import Llama3Scaling, ModelConfig
from kernels.reference import llama3_frequencies, rope_frequencies, rope_table

FIRST_SIZE = 1024


def frequencies(config: ModelConfig) -> Tensor:
    """Rotary frequencies [head_dim / 2] with the config's scaling."""
    plain = rope_frequencies(config.head_dim, config.rope_theta)
    scaling = config.rope_scaling
    if scaling is None:
        return plain
    if isinstance(scaling, Llama3Scaling):
        return llama3_frequencies(
            plain,
            scaling.factor,
            scaling.low_freq_factor,
            scaling.high_freq_factor,
            scaling.original_max_position,
        )
    return plain / torch.tensor(scaling)


class RopeTable:
    """Cosines and sines by position, fp32. Grows to the longest sequence seen, by doubling."""

    def __init__(self, config: ModelConfig) -> None:
        self._frequencies = frequencies(config)
        self._cosines = self._sines = torch.empty(0, len(self._frequencies))

    def up_to(self, num_positions: int) -> tuple[Tensor, Tensor]:
        """Two tables, each [at least num_positions, head_dim / 2]."""
        if num_positions > len(self._cosines):
            size = max(num_positions, 2 * len(self._cosines), FIRST_SIZE)
            half = len(self._frequencies)
            # The reference gives both halves of a head, which are the same.
            tables = rope_table(torch.arange(size), self._frequencies, torch.float32)
            self._cosines, self._sines = (table[:, 0, :half].contiguous() for table in tables)
        return self._cosines, self._sines
