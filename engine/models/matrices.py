"""Matrices in every number format, and the product of rows with them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor

from kernels.blocks import Blocks, PackedBlocks
from kernels.quantised import int8_linear, quantise_rows, spread, spread_weights
from kernels.reference import quantise_rows_fp8


@dataclass(frozen=True, slots=True)
class Int8Matrix:
    """A matrix [out, in] of 8-bit numbers, each row with a scale of its own."""

    values: Tensor  # [out, in] int8
    scales: Tensor  # [out, 1] fp32
    spread: bool  # rows that it is multiplied with are spread first (kernels.quantised)

    @classmethod
    def of(cls, matrix: Tensor, *, spread: bool = True) -> Int8Matrix:
        return cls(*quantise_rows(spread_weights(matrix) if spread else matrix), spread)

    @classmethod
    def of_blocks(cls, blocks: Blocks) -> Int8Matrix | None:
        """The same numbers, where they are whole multiples of one scale for every output; else None."""
        if blocks.group < blocks.shape[1] or not torch.equal(blocks.minimums, -128 * blocks.scales):
            return None
        return cls((blocks.codes.to(torch.int16) - 128).to(torch.int8), blocks.scales, False)

    @classmethod
    def cat(cls, parts: Sequence[Int8Matrix]) -> Int8Matrix:
        values, scales = (torch.cat([getattr(part, name) for part in parts]) for name in ("values", "scales"))
        return cls(values, scales, parts[0].spread)

    def to(self, device: torch.device) -> Int8Matrix:
        return Int8Matrix(self.values.to(device), self.scales.to(device), self.spread)


@dataclass(frozen=True, slots=True)
class Fp8Matrix:
    """A matrix [out, in] in fp8 e4m3, each row with a scale of its own. For GPUs."""

    values: Tensor  # [out, in] float8_e4m3fn
    scales: Tensor  # [out, 1] fp32

    @classmethod
    def of(cls, matrix: Tensor) -> Fp8Matrix:
        return cls(*quantise_rows_fp8(matrix))

    @classmethod
    def cat(cls, parts: Sequence[Fp8Matrix]) -> Fp8Matrix:
        # torch joins no fp8.
        values = torch.cat([part.values.view(torch.uint8) for part in parts]).view(torch.float8_e4m3fn)
        return cls(values, torch.cat([part.scales for part in parts]))

    def to(self, device: torch.device) -> Fp8Matrix:
        return Fp8Matrix(self.values.to(device), self.scales.to(device))

    @property
    def shape(self) -> torch.Size:
        return self.values.shape

    def dequantised(self) -> Tensor:
        """[out, in] fp32."""
        return self.values.float() * self.scales

    def chunk(self, count: int, dim: int) -> tuple[Fp8Matrix, ...]:
        """As Tensor.chunk."""
        scales = self.scales.chunk(count) if dim == 0 else (self.scales,) * count
        return tuple(map(Fp8Matrix, self.values.chunk(count, dim), scales))


@dataclass(frozen=True, slots=True)
class QuantisedRows:
    """Rows that were quantised where they came from."""

    values: Tensor  # [T, in] float8_e4m3fn or int8
    scales: Tensor  # [T, 1] fp32
    dtype: torch.dtype  # of products with them


M = TypeVar("M", Tensor, Int8Matrix, Fp8Matrix, Blocks, PackedBlocks)
Matrix = Tensor | Int8Matrix | Fp8Matrix | Blocks | PackedBlocks
Rows = Tensor | QuantisedRows


def linear(x: Rows, matrix: Matrix, bias: Tensor | None = None) -> Tensor:
    """x [T, in] times the matrix's transpose, plus bias -> [T, out]. For int8 and fp8 rows of x are quantised too."""
    if isinstance(matrix, Fp8Matrix) or isinstance(x, QuantisedRows):
        return _biased(_quantised_linear(x, matrix), bias)
    if isinstance(matrix, Tensor):
        return F.linear(x, matrix, bias)
    if isinstance(matrix, Blocks):
        return F.linear(x, matrix.dequantised().to(x.dtype), bias)
    if isinstance(matrix, PackedBlocks):
        from kernels.gpu.codes import packed_linear  # imports Triton, which not every machine has

        return _biased(packed_linear(x, matrix), bias)
    return _biased(int8_linear(spread(x) if matrix.spread else x, matrix.values, matrix.scales), bias)


def _biased(product: Tensor, bias: Tensor | None) -> Tensor:
    return product if bias is None else product + bias


def _quantised_linear(x: Rows, matrix: Matrix) -> Tensor:
    """Of rows that are quantised, or will be, on a GPU."""
    from kernels.gpu import matmul  # imports Triton, which not every machine has

    if isinstance(matrix, Fp8Matrix):
        rows = x if isinstance(x, QuantisedRows) else QuantisedRows(*quantise_rows_fp8(x), x.dtype)
        return matmul.fp8_linear(rows.values, rows.scales, matrix.values, matrix.scales, rows.dtype)
    assert isinstance(x, QuantisedRows), "rows in int8"
    assert isinstance(matrix, Int8Matrix), "rows in int8 come to matrices in int8"
    return matmul.int8_linear(x.values, x.scales, matrix.values, matrix.scales, x.dtype)


def lookup(ids: Tensor, matrix: Matrix) -> Tensor:
    """Rows [T, in] of a matrix, which is not in fp8."""
    assert not isinstance(matrix, Fp8Matrix | PackedBlocks), "embeddings are kept as they are"
    if isinstance(matrix, Tensor):
        return F.embedding(ids, matrix)
    if isinstance(matrix, Blocks):
        return matrix.rows(ids).dequantised()
    rows = matrix.values[ids] * matrix.scales[ids]
    return spread(rows) if matrix.spread else rows  # spread twice: what the rows were
