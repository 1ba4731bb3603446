"""Weights in codes: what they stand for, and that moving them about changes nothing."""

from __future__ import annotations

import pytest
import torch

from kernels.blocks import Blocks


def random_blocks(outputs: int, inputs: int, group: int, bits: int, seed: int = 0) -> Blocks:
    generator = torch.Generator().manual_seed(seed)
    groups = -(-inputs // group)
    codes = torch.randint(0, 2**bits, (outputs, inputs), generator=generator).to(torch.uint8)
    scales, minimums = (torch.randn(outputs, groups, generator=generator).half().float() for _ in range(2))
    return Blocks(codes, scales, minimums, group, bits)


def test_a_matrix_by_hand():
    blocks = Blocks(
        torch.tensor([[0, 1, 15], [3, 2, 7]], dtype=torch.uint8),
        torch.tensor([[0.5, 2.0], [1.0, 0.25]]),
        torch.tensor([[-1.0, 0.0], [10.0, -1.0]]),
        group=2,
        bits=4,
    )
    assert blocks.dequantised().tolist() == [[-1.0, -0.5, 30.0], [13.0, 12.0, 0.75]]


@pytest.mark.parametrize(("bits", "group"), [(4, 32), (8, 32), (4, 128), (4, 50)])
def test_quantising_is_as_near_as_the_codes_allow(bits, group):
    matrix = torch.randn(7, 150, generator=torch.Generator().manual_seed(1))
    matrix[3] = 0.25
    blocks = Blocks.of(matrix, bits, group)
    assert blocks.shape == matrix.shape
    assert int(blocks.codes.max()) == 2**bits - 1
    # Half a step, and what rounding to fp16 adds to the minimum and, times the code, to the scale.
    error = blocks.scales.repeat_interleave(group, 1)[:, :150] * (0.5 + 2.0 ** (bits - 11)) + 2.0**-9
    assert ((blocks.dequantised() - matrix).abs() <= error).all()
    assert torch.equal(blocks.dequantised()[3], matrix[3])
    assert torch.equal(blocks.scales, blocks.scales.half().float())


def test_cutting_and_joining_keep_every_number():
    wide, narrow = random_blocks(4, 96, 32, 4), random_blocks(3, 96, 96, 8)
    joined = Blocks.cat([wide, narrow])
    assert (joined.group, joined.bits) == (32, 8)
    assert torch.equal(joined.dequantised(), torch.cat((wide.dequantised(), narrow.dequantised())))
    for dim, count in ((0, 2), (1, 2), (1, 3), (1, 8)):
        expected = wide.dequantised().chunk(count, dim)
        found = wide.chunk(count, dim)
        assert all(torch.equal(one.dequantised(), other) for one, other in zip(found, expected, strict=True))
    order = torch.tensor([2, 0])
    assert torch.equal(wide.rows(order).dequantised(), wide.dequantised()[order])


@pytest.mark.parametrize("group", [32, 96, 1000])
def test_padding_between_heads(group):
    """Heads of 24 features in groups that do not end with them."""
    blocks = random_blocks(5, 96, min(group, 96), 4)
    padded = blocks.padded(24, 32)
    heads = padded.dequantised().view(5, 4, 32)
    assert torch.equal(heads[..., :24].flatten(1), blocks.dequantised())
    assert not heads[..., 24:].any()
