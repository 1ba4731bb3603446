"""Masks of allowed tokens on logits, against the definition."""

from __future__ import annotations

import pytest
import torch

from kernels import reference, sampling
from kernels.sampling import apply_token_bitmask, most_probable


@pytest.mark.parametrize("vocab", [1, 31, 32, 33, 97, 1000])
@pytest.mark.parametrize("num_masked", [0, 1, 70])
def test_it_does_what_the_definition_says(vocab: int, num_masked: int) -> None:
    generator = torch.Generator().manual_seed(vocab + num_masked)
    logits = torch.randn(80, vocab, generator=generator)
    rows = torch.randperm(80, generator=generator)[:num_masked]
    mask = torch.randint(-(2**31), 2**31, (num_masked, -(-vocab // 32)), generator=generator, dtype=torch.int64).int()
    expected = logits.clone()
    reference.apply_token_bitmask(expected, rows, mask)
    apply_token_bitmask(logits, rows, mask)
    assert torch.equal(logits, expected)


def test_the_definition_reads_bits_from_the_lowest() -> None:
    logits = torch.zeros(2, 40)
    reference.apply_token_bitmask(logits, torch.tensor([1]), torch.tensor([[0b101, -1]], dtype=torch.int32))
    allowed = [0, 2, *range(32, 40)]
    assert torch.equal(logits[0], torch.zeros(40))
    assert [token for token in range(40) if logits[1, token] == 0] == allowed
    assert torch.isneginf(logits[1]).sum() == 30


def test_not_a_number_stays_one_where_it_is_allowed() -> None:
    logits = torch.full((1, 32), torch.nan)
    apply_token_bitmask(logits, torch.tensor([0]), torch.tensor([[1]], dtype=torch.int32))
    assert logits[0, 0].isnan()
    assert torch.isneginf(logits[0, 1:]).all()


def test_the_variant_for_devices_does_the_same() -> None:
    generator = torch.Generator().manual_seed(1)
    logits = torch.randn(90, 100, generator=generator)
    rows = torch.randperm(90, generator=generator)[:70]
    mask = torch.randint(-(2**31), 2**31, (70, 4), generator=generator, dtype=torch.int64).int()
    expected = logits.clone()
    reference.apply_token_bitmask(expected, rows, mask)
    sampling.add_bitmask_bias(logits, rows, mask)
    assert torch.equal(logits, expected)


@pytest.mark.parametrize("rows", [0, 1, 70])
def test_the_most_probable(rows: int) -> None:
    logits = torch.randn(rows, 1001, generator=torch.Generator().manual_seed(rows))
    values, tokens = most_probable(logits)
    assert (values.shape, tokens.dtype) == ((rows,), torch.int64)
    expected = logits.max(dim=-1)
    assert torch.equal(values, expected.values)
    assert torch.equal(tokens, expected.indices)


def test_the_most_probable_of_odd_rows() -> None:
    inf, nan = torch.inf, torch.nan
    logits = torch.tensor([[1.0, 3, 3], [-inf, -inf, -inf], [inf, 0, inf], [5, nan, 9], [-inf, -7, -inf]])
    values, tokens = most_probable(logits)
    assert tokens.tolist() == [1, 0, 0, 1, 1]
    assert values.tolist()[:3] == [3.0, -inf, inf]
    assert values[3].isnan()
    assert values[4] == -7.0
