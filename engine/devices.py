"""Where a model runs: `cpu`, `cuda` or `cuda:N`, or `interpret`."""

from __future__ import annotations

import torch


def torch_device(name: str) -> torch.device:
    """Where the tensors are. With `interpret` they are on the CPU: the path of a GPU in Triton's interpreter, slow, to
    test it without one."""
    return torch.device("cpu" if name == "interpret" else name)


def uses_kernels(name: str) -> bool:
    """Whether Triton's kernels compute, instead of the CPU's code."""
    return name != "cpu"
