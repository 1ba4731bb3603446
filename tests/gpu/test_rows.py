"""Norms, activations, rotary positions and the cache's writing against their references."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from kernels import reference
from kernels.gpu.activation import silu_and_mul, silu_and_mul_quantised
from kernels.gpu.cache import write_cache
from kernels.gpu.norm import add_rms_norm, add_rms_norm_quantised, rms_norm
from kernels.gpu.rope import rope
from kernels.quantised import quantise_rows
from tests.gpu.cases import TOLERANCE

DTYPES = [torch.float32, torch.bfloat16]
SHAPES = [(1, 64), (3, 96), (2, 1100)]
EPS = 1e-5


def rows(*shape: int, dtype: torch.dtype, seed: int = 0) -> Tensor:
    return (3 * torch.randn(shape, generator=torch.Generator().manual_seed(seed))).to(dtype)


def close(one: Tensor, other: Tensor) -> None:
    assert one.dtype == other.dtype
    torch.testing.assert_close(one, other, atol=TOLERANCE[one.dtype], rtol=TOLERANCE[one.dtype])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [*SHAPES, (2, 3, 16)])
def test_rms_norm(shape: tuple[int, ...], dtype: torch.dtype):
    x, weight = rows(*shape, dtype=dtype), rows(shape[-1], dtype=dtype, seed=1)
    close(rms_norm(x, weight, EPS), reference.rms_norm(x, weight, EPS))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_add_rms_norm(shape: tuple[int, int], dtype: torch.dtype):
    x, residual, weight = (rows(*own, dtype=dtype, seed=i) for i, own in enumerate((shape, shape, shape[1:])))
    before = x.clone(), residual.clone()
    normed, total = add_rms_norm(x, residual, weight, EPS)
    expected, expected_total = reference.add_rms_norm(x, residual, weight, EPS)
    assert torch.equal(total, expected_total)
    close(normed, expected)
    assert torch.equal(x, before[0])
    assert torch.equal(residual, before[1])


def check_quantised(found: tuple[Tensor, Tensor], expected: tuple[Tensor, Tensor]) -> None:
    """The same numbers but for the last place of the format, where rounding is a matter of the last bit before it."""
    values, scales = found
    torch.testing.assert_close(scales, expected[1], rtol=1e-6, atol=0)
    assert values.dtype == expected[0].dtype
    wide, expected_wide = values.float(), expected[0].float()
    step = 1.0 if values.dtype == torch.int8 else expected_wide.abs() / 8
    assert ((wide - expected_wide).abs() <= step).all()
    assert (wide == expected_wide).float().mean() > 0.99


FORMATS = [(torch.int8, quantise_rows), (torch.float8_e4m3fn, reference.quantise_rows_fp8)]


@pytest.mark.parametrize(("dtype", "quantise"), FORMATS)
@pytest.mark.parametrize("shape", SHAPES)
def test_fused_quantisation(shape: tuple[int, int], dtype: torch.dtype, quantise):
    x, residual, weight = (rows(*own, dtype=torch.float32, seed=i) for i, own in enumerate((shape, shape, shape[1:])))
    values, scales, total = add_rms_norm_quantised(x, residual, weight, EPS, dtype)
    normed, expected_total = reference.add_rms_norm(x, residual, weight, EPS)
    assert torch.equal(total, expected_total)
    check_quantised((values, scales), quantise(normed))
    values, scales, same = add_rms_norm_quantised(x, None, weight, EPS, dtype)
    assert same is x
    check_quantised((values, scales), quantise(reference.rms_norm(x, weight, EPS)))
    check_quantised(silu_and_mul_quantised(x, dtype), quantise(reference.silu_and_mul(x)))


@pytest.mark.parametrize("dtype", [torch.int8, torch.float8_e4m3fn])
def test_a_row_of_zeros_is_quantised_to_zeros(dtype: torch.dtype):
    values, scales = silu_and_mul_quantised(torch.zeros(2, 20), dtype)
    assert values.float().tolist() == [[0.0] * 10] * 2
    assert scales.tolist() == [[0.0]] * 2


def test_int8_rounds_halves_to_even():
    x = torch.tensor([[127.0, 0.5, 1.5, -0.5, -2.5]])
    values, _, _ = add_rms_norm_quantised(x, None, torch.ones(5), 0.0, torch.int8)
    assert values.tolist() == quantise_rows(reference.rms_norm(x, torch.ones(5), 0.0))[0].tolist()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(1, 64), (3, 90), (2, 2200)])
def test_silu_and_mul(shape: tuple[int, int], dtype: torch.dtype):
    x = rows(*shape, dtype=dtype)
    close(silu_and_mul(x), reference.silu_and_mul(x))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("num_heads", "head_dim"), [(1, 16), (9, 24), (8, 64)])
def test_rope_of_a_part_of_longer_rows(num_heads: int, head_dim: int, dtype: torch.dtype):
    whole = rows(5, num_heads + 2, head_dim, dtype=dtype)
    x = whole[:, 1:-1]
    positions = torch.tensor([0, 1, 7, 1000, 3])
    cos, sin = reference.rope_table(positions, reference.rope_frequencies(head_dim, 1e4), dtype)
    close(rope(x, cos, sin), reference.rope(x, cos, sin))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("num_heads", "head_dim", "block_size"), [(1, 16, 4), (3, 24, 16), (2, 64, 64)])
def test_write_cache(num_heads: int, head_dim: int, block_size: int, dtype: torch.dtype):
    whole = rows(4, 3 * num_heads, head_dim, dtype=dtype)
    key, value = whole[:, :num_heads], whole[:, num_heads : 2 * num_heads]
    slots = torch.tensor([2 * block_size - 1, 5 * block_size, -1, 3])
    caches = torch.full((2, 6, num_heads, block_size, head_dim), 7.0, dtype=dtype)
    expected = caches.clone()
    write_cache(key, value, *caches, slots)
    kept = slots >= 0
    reference.write_cache(key[kept], value[kept], *expected, slots[kept])
    assert torch.equal(caches, expected)


def test_write_cache_as_fp8():
    key, value = rows(3, 2, 32, dtype=torch.bfloat16), rows(3, 2, 32, dtype=torch.bfloat16, seed=1)
    scales = torch.tensor([0.5, 0.001]), torch.tensor([0.02, 2.0])  # 0.001: most of it is cut
    caches = torch.zeros(2, 4, 2, 16, 32).to(torch.float8_e4m3fn)
    slots = torch.tensor([63, 0, 20])
    write_cache(key, value, *caches, slots, scales)
    for part, cache, own in zip((key, value), caches, scales, strict=True):
        expected = (part.float() / own[:, None]).clamp(-448, 448).to(torch.float8_e4m3fn)
        assert torch.equal(cache[slots // 16, :, slots % 16].float(), expected.float())
    assert torch.count_nonzero(caches.float()) <= 2 * 3 * 64


def test_write_cache_beyond_2_to_the_31():
    key, value = (rows(1, 1, 128, dtype=torch.float32, seed=seed) for seed in (0, 1))
    num_blocks = 2**31 // (64 * 128) + 2
    caches = torch.zeros(0, dtype=torch.float8_e4m3fn).new_empty((2, num_blocks, 1, 64, 128))
    write_cache(key, value, *caches, torch.tensor([num_blocks * 64 - 1]), (torch.ones(1), torch.ones(1)))
    for part, cache in zip((key, value), caches, strict=True):
        assert torch.equal(cache[-1, 0, -1].float(), part[0, 0].to(torch.float8_e4m3fn).float())
