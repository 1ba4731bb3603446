"""A GGUF file as metadata and tensors, through the `gguf` package of llama.cpp."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import gguf
import numpy as np
import torch
from torch import Tensor

from engine.errors import ModelError, UnsupportedModel
from engine.fields import Fields


@dataclass(frozen=True, slots=True)
class GGUFFile:
    """`fields` holds the metadata under the file's own keys. Tensors stay on disk until they are asked for."""

    path: Path
    fields: Fields
    shapes: dict[str, tuple[int, ...]]  # rows first, as PyTorch counts
    _tensors: dict[str, gguf.ReaderTensor]

    @classmethod
    def open(cls, path: Path) -> GGUFFile:
        """Raises ModelError for a missing or damaged file, UnsupportedModel for one of several parts."""
        if not path.is_file():
            raise ModelError(path, "the file is missing")
        try:
            # Copy on write: dequantised views of the file are then writable arrays, as PyTorch wants them.
            reader = gguf.GGUFReader(path, "c")
            values = {name: field.contents() for name, field in reader.fields.items()}
        except (ValueError, KeyError, IndexError, OverflowError, MemoryError) as error:
            raise ModelError(path, f"is not a sound GGUF file: {error}") from error
        if values.get("split.count", 1) > 1:
            raise UnsupportedModel(path, f"is one of {values['split.count']} parts; only single GGUF files are read")
        tensors = {tensor.name: tensor for tensor in reader.tensors}
        shapes = {name: tuple(reversed(tensor.shape.tolist())) for name, tensor in tensors.items()}
        return cls(path, Fields(path, values), shapes, tensors)

    def tensor(self, name: str) -> Tensor:
        """A tensor dequantised to fp32, as a copy or a private view of the file."""
        tensor = self._tensors[name]
        try:
            values = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        except NotImplementedError as error:
            raise UnsupportedModel(self.path, f"tensor {name} is of type {tensor.tensor_type.name}") from error
        return torch.from_numpy(np.ascontiguousarray(values, dtype=np.float32))

    def tensors(self) -> Iterator[tuple[str, Tensor]]:
        """All tensors in file order, one in memory at a time."""
        for name in self._tensors:
            yield name, self.tensor(name)
