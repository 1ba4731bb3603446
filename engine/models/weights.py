"""Filling a model's weights from named tensors, one at a time, so that a load never holds two copies of the model."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from torch import Tensor

from engine.errors import ModelError


def fill(views: dict[str, Tensor], tensors: Iterable[tuple[str, Tensor]], path: Path) -> None:
    """Copy every tensor into the view of its name, converting its number format.

    Raises ModelError that names the tensor when one is unexpected, misshapen, given twice or missing.
    """
    missing = dict(views)
    for name, tensor in tensors:
        view = missing.pop(name, None)
        if view is None:
            raise ModelError(path, f"tensor {name} {'is there twice' if name in views else 'is unexpected'}")
        if view.shape != tensor.shape:
            raise ModelError(path, f"tensor {name} has shape {list(tensor.shape)}, expected {list(view.shape)}")
        view.copy_(tensor)
    if missing:
        others = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise ModelError(path, f"tensor {min(missing)}{others} missing")
