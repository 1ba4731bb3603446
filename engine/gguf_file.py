"""A GGUF file as metadata and tensors.

The header is parsed here, by the format's description in ggml's docs/gguf.md: the `gguf` package makes an array view of
every string, which costs seconds for a vocabulary. Tensor types and their dequantisation are the package's.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from engine.errors import ModelError, UnsupportedModel
from engine.fields import Fields

MAGIC = b"GGUF"
VERSIONS = (2, 3)
DEFAULT_ALIGNMENT = 32
# struct's codes of the scalar value types, by the type's number in the file.
SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
STRING, ARRAY = 8, 9
TENSOR_TYPES = {kind.value: kind for kind in gguf.GGMLQuantizationType}


@dataclass(frozen=True, slots=True)
class TensorPlace:
    """Where a tensor lies in the file, and what it is."""

    shape: tuple[int, ...]  # rows first, as PyTorch counts
    type: gguf.GGMLQuantizationType
    offset: int  # in bytes, from the start of the file


@dataclass(frozen=True, slots=True)
class GGUFFile:
    """`fields` holds the metadata under the file's own keys. Tensors stay on disk until they are asked for."""

    path: Path
    fields: Fields
    places: dict[str, TensorPlace]
    _data: npt.NDArray[np.uint8]

    @classmethod
    def open(cls, path: Path) -> GGUFFile:
        """Raises ModelError for a missing or damaged file, UnsupportedModel for one of several parts."""
        if not path.is_file():
            raise ModelError(path, "the file is missing")
        try:
            # Copy on write: views of the file are then writable arrays, as PyTorch wants them.
            data = np.asarray(np.memmap(path, mode="c"))
            values, places = _Header(path, data.data).read()
        except (ValueError, struct.error, OverflowError, MemoryError, RecursionError) as error:
            raise ModelError(path, f"is not a sound GGUF file: {error}") from error
        if values.get("split.count", 1) > 1:
            raise UnsupportedModel(path, f"is one of {values['split.count']} parts; only single GGUF files are read")
        return cls(path, Fields(path, values), places, data)

    def tensor(self, name: str) -> Tensor:
        """A tensor dequantised to fp32, as a copy or a private view of the file."""
        place = self.places[name]
        *rows, columns = place.shape
        block_size, block_bytes = gguf.GGML_QUANT_SIZES[place.type]
        if columns % block_size:
            raise ModelError(self.path, f"tensor {name} has rows of {columns}, not a multiple of {block_size}")
        row_bytes = columns // block_size * block_bytes
        stop = place.offset + int(np.prod(rows, dtype=object)) * row_bytes
        if stop > len(self._data):
            raise ModelError(self.path, f"tensor {name} reaches beyond the end of the file")
        raw = self._data[place.offset : stop].reshape(*rows, row_bytes)
        try:
            values = gguf.quants.dequantize(raw, place.type)
        except NotImplementedError as error:
            raise UnsupportedModel(self.path, f"tensor {name} is of type {place.type.name}") from error
        return torch.from_numpy(np.ascontiguousarray(values, dtype=np.float32))

    def tensors(self) -> Iterator[tuple[str, Tensor]]:
        """All tensors in file order, one in memory at a time."""
        for name in self.places:
            yield name, self.tensor(name)


class _Header:
    """A walk through the head of a file: little-endian values one after the other."""

    def __init__(self, path: Path, data: memoryview) -> None:
        self._path = path
        self._data = data
        self._offset = 0

    def read(self) -> tuple[dict[str, Any], dict[str, TensorPlace]]:
        """Metadata by key, and tensors by name."""
        if bytes(self._data[:4]) != MAGIC:
            raise ValueError("it does not begin with GGUF")
        self._offset = 4
        version = self._scalar("I")
        if version not in VERSIONS:
            raise UnsupportedModel(self._path, f"GGUF version {version}; supported are 2 and 3, little-endian")
        num_tensors, num_values = self._scalar("Q"), self._scalar("Q")
        values: dict[str, Any] = {}
        for _ in range(num_values):
            key = self._string()
            values[key] = self._value(self._scalar("I"))
        places = dict(self._place() for _ in range(num_tensors))
        if len(places) != num_tensors:
            raise ValueError("it holds a tensor twice")
        alignment = Fields(self._path, values).integer("general.alignment", DEFAULT_ALIGNMENT)
        start = -(-self._offset // alignment) * alignment
        return values, {
            name: TensorPlace(place.shape, place.type, start + place.offset) for name, place in places.items()
        }

    def _place(self) -> tuple[str, TensorPlace]:
        """One tensor's entry; its offset still counts from the end of the header."""
        name = self._string()
        shape = tuple(reversed([self._scalar("Q") for _ in range(self._scalar("I"))]))
        number = self._scalar("I")
        if not shape or number not in TENSOR_TYPES:
            raise UnsupportedModel(self._path, f"tensor {name} is of type number {number} and shape {list(shape)}")
        return name, TensorPlace(shape, TENSOR_TYPES[number], self._scalar("Q"))

    def _value(self, kind: int) -> Any:
        if kind in SCALARS:
            return self._scalar(SCALARS[kind])
        if kind == STRING:
            return self._string()
        if kind != ARRAY:
            raise ValueError(f"it holds a value of unknown type {kind}")
        kind, count = self._scalar("I"), self._scalar("Q")
        if kind in SCALARS:
            form = f"<{count}{SCALARS[kind]}"
            values = list(struct.unpack_from(form, self._data, self._offset))
            self._offset += struct.calcsize(form)
            return values
        return [self._value(kind) for _ in range(count)]

    def _scalar(self, code: str) -> Any:
        (value,) = struct.unpack_from(f"<{code}", self._data, self._offset)
        self._offset += struct.calcsize(f"<{code}")
        return value

    def _string(self) -> str:
        length = self._scalar("Q")
        if length > len(self._data) - self._offset:
            raise ValueError("a text reaches beyond the end of the file")
        text = str(self._data[self._offset : self._offset + length], "utf-8")
        self._offset += length
        return text
