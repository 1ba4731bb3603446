"""Choice: what is done to logits on the device that they are on. The two kinds draw by different methods, so a seed
repeats its output on the same kind of device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from engine.config import EngineConfig
from engine.devices import uses_kernels
from engine.draw import draw
from engine.philox import uniform
from engine.request import SamplingParams
from kernels import sampling as torch_sampling

Seeds = NDArray[np.uint64]


class Choice(Protocol):
    def apply_token_bitmask(self, logits: Tensor, rows: Tensor, mask: Tensor) -> None:
        """See kernels.reference."""
        ...

    def draw(self, logits: Tensor, sampling: Sequence[SamplingParams], seeds: Seeds, positions: Seeds) -> Tensor:
        """A token of each row of logits [N, vocab] with its own parameters -> [N] int64. What is drawn follows from
        the row, its seed and its position alone."""
        ...


class TorchChoice:
    """In PyTorch, by inversion of the distribution function (engine.draw)."""

    apply_token_bitmask = staticmethod(torch_sampling.apply_token_bitmask)

    def draw(self, logits: Tensor, sampling: Sequence[SamplingParams], seeds: Seeds, positions: Seeds) -> Tensor:
        return draw(logits, sampling, torch.from_numpy(uniform(seeds, positions)).to(logits.device))


class GpuChoice:
    """As Triton kernels, by Gumbel noise (kernels.gpu.sampling)."""

    def apply_token_bitmask(self, logits: Tensor, rows: Tensor, mask: Tensor) -> None:
        from kernels.gpu.bitmask import apply_token_bitmask  # imports Triton, which not every machine has

        apply_token_bitmask(logits, rows, mask)

    def draw(self, logits: Tensor, sampling: Sequence[SamplingParams], seeds: Seeds, positions: Seeds) -> Tensor:
        from kernels.gpu.sampling import sample

        def column(values: Sequence[float] | Seeds, dtype: torch.dtype) -> Tensor:
            return torch.tensor(values, dtype=dtype).to(logits.device, non_blocking=True)

        return sample(
            logits,
            column([each.temperature for each in sampling], torch.float32),
            column([each.top_k for each in sampling], torch.int32),
            column([each.top_p for each in sampling], torch.float32),
            column([each.min_p for each in sampling], torch.float32),
            column(seeds.view(np.int64), torch.int64),
            column(positions.view(np.int64), torch.int64),
        )


def choice_of(config: EngineConfig) -> Choice:
    return GpuChoice() if uses_kernels(config.device) else TorchChoice()
