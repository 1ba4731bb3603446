"""Products with quantised matrices against plain PyTorch."""

from __future__ import annotations

import pytest
import torch

from kernels import quantised
from kernels.blocks import Blocks, PackedBlocks
from kernels.gpu.codes import packed_linear
from kernels.gpu.matmul import int8_linear
from tests.gpu.cases import TOLERANCE

SIZES = [(4, 128, 32), (4, 96, 32), (4, 192, 192), (8, 96, 32), (8, 80, 80)]
CPU = torch.device("cpu")


@pytest.mark.parametrize("num_rows", [1, 5, 17, 70, 130])
def test_int8_products_are_exact(num_rows: int):
    generator = torch.Generator().manual_seed(num_rows)
    x, weight = (torch.randn(size, 200, generator=generator) for size in (num_rows, 150))
    values, scales = quantised.quantise_rows(x)
    weight_values, weight_scales = quantised.quantise_rows(weight)
    found = int8_linear(values, scales, weight_values, weight_scales, torch.float32)
    expected = (values.double() @ weight_values.double().t()).float() * (scales * weight_scales.t())
    assert torch.equal(found, expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("num_rows", [1, 17])
@pytest.mark.parametrize(("bits", "inputs", "group"), SIZES)
def test_products_with_codes(bits: int, inputs: int, group: int, num_rows: int, dtype: torch.dtype):
    generator = torch.Generator().manual_seed(0)
    x, weight = (torch.randn(size, inputs, generator=generator) for size in (num_rows, 70))
    blocks = Blocks.of(weight / inputs**0.5, bits, group)
    x = x.to(dtype)
    found = packed_linear(x, PackedBlocks.of(blocks, CPU))
    expected = (x.double() @ blocks.dequantised().double().t()).to(dtype)
    assert found.dtype == dtype
    torch.testing.assert_close(found, expected, atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype])


def test_a_row_does_not_feel_its_neighbours():
    """Within one size of tiles, to the bit."""
    generator = torch.Generator().manual_seed(0)
    x, weight = (torch.randn(size, 64, generator=generator) for size in (9, 70))
    matrix = PackedBlocks.of(Blocks.of(weight, 4), CPU)
    assert torch.equal(packed_linear(x, matrix)[3], packed_linear(x[3:4].contiguous(), matrix)[0])


def test_groups_that_no_piece_fits_are_refused():
    with pytest.raises(ValueError, match="groups of 24 inputs are no multiple of 16"):
        PackedBlocks.of(Blocks.of(torch.randn(3, 48), 4, 24), CPU)
