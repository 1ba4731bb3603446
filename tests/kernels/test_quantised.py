"""8-bit products and the transform before them, against plain arithmetic."""

from __future__ import annotations

import pytest
import torch

from kernels.quantised import int8_linear, quantise_rows, spread, spread_weights


def test_rows_are_quantised_by_their_largest_number():
    values, scales = quantise_rows(torch.tensor([[254.0, -2.0, 1.0, 3.1], [0.0, 0.0, 0.0, 0.0], [-1.0, 0.5, 0.0, 1.0]]))
    assert values.tolist() == [[127, -1, 0, 2], [0, 0, 0, 0], [-127, 64, 0, 127]]
    torch.testing.assert_close(scales, torch.tensor([[2.0], [0.0], [1 / 127]]))


def test_products_of_whole_numbers_are_exact():
    generator = torch.Generator().manual_seed(0)
    x, weight = (torch.randint(-127, 128, (5, 40), generator=generator) for _ in range(2))
    x[:, 0] = 127
    product = int8_linear(x.float(), weight.to(torch.int8), torch.full((5, 1), 0.5))
    assert torch.equal(product, (x @ weight.t()).float() * 0.5)


def test_spread_of_two_groups_by_hand():
    """One feature becomes its stretch of 32 features: both groups, and all 16 features of each."""
    x = torch.zeros(32)
    x[3] = 1.0
    signs = [(-1.0) ** ((i & 1) + (i >> 1 & 1)) for i in range(16)]  # row 3 of Sylvester's matrix
    assert spread(x).tolist() == signs + signs
    x = torch.zeros(32)
    x[16] = 1.0
    assert spread(x).tolist() == [1.0] * 16 + [-1.0] * 16


def test_sixteen_groups_are_mixed_across_alone():
    x = torch.zeros(512)
    x[256 + 5] = 1.0
    expected = torch.zeros(512)
    expected[256 + 5 :: 16] = 1.0
    assert torch.equal(spread(x), expected)


@pytest.mark.parametrize("size", [16, 48, 64, 96, 576, 1536])
def test_spread_rows_and_weights_have_the_same_product(size):
    generator = torch.Generator().manual_seed(size)
    x, weight = (torch.randn(7, size, generator=generator, dtype=torch.float64) for _ in range(2))
    assert not torch.allclose(spread(x), x)
    torch.testing.assert_close(spread(x) @ spread_weights(weight).t(), x @ weight.t())
    torch.testing.assert_close(spread(spread_weights(weight)), weight)


def test_rows_of_no_whole_groups_stay():
    x = torch.randn(3, 40)
    assert spread(x) is x
    assert spread_weights(x) is x
