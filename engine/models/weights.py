"""Checking a checkpoint's tensors, one at a time, so that a load never holds two copies of the model."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import torch

from engine.errors import ModelError
from engine.models.fusion import Named


def checked(shapes: Mapping[str, torch.Size], tensors: Iterable[Named], path: Path) -> Iterator[Named]:
    """The same tensors.

    Raises ModelError that names the tensor when one is unexpected, misshapen, given twice or, at the end, missing.
    """
    missing = dict(shapes)
    for name, tensor in tensors:
        shape = missing.pop(name, None)
        if shape is None:
            raise ModelError(path, f"tensor {name} {'is there twice' if name in shapes else 'is unexpected'}")
        if shape != tensor.shape:
            raise ModelError(path, f"tensor {name} has shape {list(tensor.shape)}, expected {list(shape)}")
        yield name, tensor
    if missing:
        others = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise ModelError(path, f"tensor {min(missing)}{others} missing")
