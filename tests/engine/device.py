"""The engine's path for devices without Triton: what its kernels compute, in PyTorch, for tests of the rest of it."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from engine.draw import draw
from engine.philox import uniform
from engine.request import SamplingParams
from kernels import reference
from kernels import sampling as torch_sampling


def install(monkeypatch: pytest.MonkeyPatch) -> None:
    """Put the references in the kernels' places, and draw as on a CPU. Steps are not padded: the references have no
    rows without a slice."""
    from engine import chooser, gpu_runner  # they import Triton, which not every machine has
    from kernels.gpu import bitmask, sampling

    monkeypatch.setattr(gpu_runner, "SIZES", (0,))
    monkeypatch.setattr(gpu_runner, "prepare_inputs", prepare_inputs)
    monkeypatch.setattr(bitmask, "apply_token_bitmask", torch_sampling.apply_token_bitmask)
    for module in (chooser, sampling):
        monkeypatch.setattr(module, "sample", sample)


def prepare_inputs(*arguments: object) -> tuple[Tensor, ...]:
    index, (tokens, rows, last) = arguments[:6], arguments[6:9]
    fed = reference.fed_tokens(index[0], tokens, rows, last)  # type: ignore[arg-type]
    return fed, *reference.prepare_inputs(*index)  # type: ignore[arg-type]


def sample(
    logits: Tensor, temperatures: Tensor, top_k: Tensor, top_p: Tensor, min_p: Tensor, seeds: Tensor, positions: Tensor
) -> Tensor:
    """kernels.gpu.sampling.sample, by inversion as on a CPU."""
    columns = (temperatures.tolist(), top_k.tolist(), top_p.tolist(), min_p.tolist())
    sampling = [
        SamplingParams(temperature=temperature, top_k=k, top_p=p, min_p=least)
        for temperature, k, p, least in zip(*columns, strict=True)
    ]
    numbers = uniform(seeds.numpy().astype(np.uint64), positions.numpy().astype(np.uint64))
    drawn = draw(logits, sampling, torch.from_numpy(numbers))
    return torch.where(temperatures > 0, drawn, logits.argmax(-1))
