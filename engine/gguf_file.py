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
from kernels.blocks import Blocks

MAGIC = b"GGUF"
VERSIONS = (2, 3)
DEFAULT_ALIGNMENT = 32
# struct's codes of the scalar value types, by the type's number in the file.
SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
STRING, ARRAY = 8, 9
BLOCK_BITS = {gguf.GGMLQuantizationType[name]: bits for name, bits in (("Q4_0", 4), ("Q4_1", 4), ("Q8_0", 8))}
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
        raw, kind = self._raw(name), self.places[name].type
        try:
            values = gguf.quants.dequantize(raw, kind)
        except NotImplementedError as error:
            raise UnsupportedModel(self.path, f"tensor {name} is of type {kind.name}") from error
        return torch.from_numpy(np.ascontiguousarray(values, dtype=np.float32))

    def stored(self, name: str) -> Tensor | Blocks:
        """A matrix of Q4_0, Q4_1 or Q8_0 as its own codes; anything else as `tensor` has it."""
        place = self.places[name]
        if place.type not in BLOCK_BITS or len(place.shape) != 2:
            return self.tensor(name)
        return _blocks(self._raw(name), place.type)

    def _raw(self, name: str) -> npt.NDArray[np.uint8]:
        """A tensor's bytes [rows, bytes of a row], a private view of the file."""
        place = self.places[name]
        *rows, columns = place.shape
        block_size, block_bytes = gguf.GGML_QUANT_SIZES[place.type]
        if columns % block_size:
            raise ModelError(self.path, f"tensor {name} has rows of {columns}, not a multiple of {block_size}")
        row_bytes = columns // block_size * block_bytes
        stop = place.offset + int(np.prod(rows, dtype=object)) * row_bytes
        if stop > len(self._data):
            raise ModelError(self.path, f"tensor {name} reaches beyond the end of the file")
        return self._data[place.offset : stop].reshape(*rows, row_bytes)

    def tensors(self, *, stored: bool = False) -> Iterator[tuple[str, Tensor | Blocks]]:
        """All tensors in file order, one in memory at a time; with `stored` as that method gives them."""
        for name in self.places:
            yield name, self.stored(name) if stored else self.tensor(name)


def _blocks(raw: npt.NDArray[np.uint8], kind: gguf.GGMLQuantizationType) -> Blocks:
    """Rows of whole blocks: a scale, for Q4_1 a minimum, and 32 codes; of 4 bits, 16 in the low halves, then 16 more in
    the high ones (ggml-common.h). Scale and code have so few bits that scale * code + minimum is rounded once, as ggml
    does it."""
    bits, (outputs, _) = BLOCK_BITS[kind], raw.shape
    parts = torch.from_numpy(raw).view(outputs, -1, gguf.GGML_QUANT_SIZES[kind][1])
    halves = parts[..., : 4 if kind == gguf.GGMLQuantizationType.Q4_1 else 2].contiguous().view(torch.float16).float()
    packed = parts[..., 2 * halves.shape[-1] :]
    codes = torch.cat((packed & 15, packed >> 4), dim=-1) if bits == 4 else packed ^ 128
    scales = halves[..., 0]
    minimums = halves[..., 1] if halves.shape[-1] == 2 else scales * -float(2 ** (bits - 1))
    return Blocks(codes.reshape(outputs, -1).contiguous(), scales.contiguous(), minimums.contiguous(), 32, bits)


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
