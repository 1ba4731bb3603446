"""The reference ops against independent formulas."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F

from kernels.reference import (
    add_rms_norm,
    llama3_frequencies,
    paged_attention,
    rms_norm,
    rope,
    rope_frequencies,
    rope_table,
    silu_and_mul,
    write_cache,
)


def test_rms_norm_by_hand():
    x = torch.tensor([[3.0, 4.0]])
    scale = 1 / math.sqrt(12.5 + 0.5)
    torch.testing.assert_close(rms_norm(x, torch.tensor([1.0, 2.0]), 0.5), torch.tensor([[3 * scale, 8 * scale]]))


def test_rms_norm_in_bf16_is_computed_in_fp32():
    x = torch.randn(4, 64, generator=torch.Generator().manual_seed(0)).bfloat16() * 300
    weight = torch.ones(64, dtype=torch.bfloat16)
    assert torch.equal(rms_norm(x, weight, 1e-5), F.rms_norm(x.float(), (64,), eps=1e-5).bfloat16())


def test_add_rms_norm_returns_the_sum():
    x, residual = torch.ones(1, 4), torch.full((1, 4), 2.0)
    normed, total = add_rms_norm(x, residual, torch.full((4,), 5.0), 0.0)
    assert total.tolist() == [[3.0] * 4]
    torch.testing.assert_close(normed, torch.full((1, 4), 5.0))


def test_silu_and_mul_takes_the_gates_first():
    gate_up = torch.tensor([[0.0, 1.0, 10.0, 20.0]])
    torch.testing.assert_close(silu_and_mul(gate_up), torch.tensor([[0.0, 20 / (1 + math.exp(-1))]]))


def test_rope_is_a_rotation_by_position():
    frequencies = rope_frequencies(4, 100.0)
    torch.testing.assert_close(frequencies, torch.tensor([1.0, 0.1]))
    cos, sin = rope_table(torch.tensor([0, 3]), frequencies, torch.float32)
    x = torch.tensor([1.0, 2.0, 3.0, 4.0]).expand(2, 1, 4)
    rotated = rope(x, cos, sin)
    assert torch.equal(rotated[0], x[0])
    for first, second, angle in ((0, 2, 3.0), (1, 3, 0.3)):
        pair = complex(x[1, 0, first], x[1, 0, second]) * complex(math.cos(angle), math.sin(angle))
        torch.testing.assert_close(rotated[1, 0, [first, second]], torch.tensor([pair.real, pair.imag]))


def test_llama3_frequencies_at_their_three_ranges():
    frequencies = 2 * math.pi / torch.tensor([10.0, 1000.0, 64 / 2.5])  # wavelengths
    scaled = llama3_frequencies(frequencies, 8.0, 1.0, 4.0, 64)
    middle = 0.5 * frequencies[2] / 8 + 0.5 * frequencies[2]
    torch.testing.assert_close(scaled, torch.stack((frequencies[0], frequencies[1] / 8, middle)))


def test_write_cache_puts_rows_at_their_slots():
    key_cache, value_cache = torch.zeros(3, 2, 4, 5), torch.zeros(3, 2, 4, 5)
    key, value = torch.arange(20.0).reshape(2, 2, 5), -torch.arange(20.0).reshape(2, 2, 5)
    write_cache(key, value, key_cache, value_cache, torch.tensor([9, 2]))
    assert torch.equal(key_cache[2, :, 1], key[0])
    assert torch.equal(key_cache[0, :, 2], key[1])
    assert torch.equal(value_cache[2, :, 1], value[0])
    assert torch.count_nonzero(key_cache) == 19  # one of the 20 numbers is itself 0


def test_paged_attention_equals_attention_over_plain_tensors():
    """Two slices of one sequence's end and of a whole other one, GQA 3:1, blocks out of order."""
    generator = torch.Generator().manual_seed(0)
    key_cache, value_cache = torch.randn(2, 8, 2, 4, 16, generator=generator)
    tables = torch.tensor([[5, 0, 3], [1, 7, 0]], dtype=torch.int32)
    contexts, starts = torch.tensor([10, 6], dtype=torch.int32), torch.tensor([0, 3, 9], dtype=torch.int32)
    query = torch.randn(9, 6, 16, generator=generator)
    out = paged_attention(query, key_cache, value_cache, tables, starts, contexts, 0.25)
    for i_slice, (rows, blocks, context) in enumerate((((0, 3), [5, 0, 3], 10), ((3, 9), [1, 7], 6))):
        key, value = (
            torch.cat([cache[block] for block in blocks], dim=1)[:, :context] for cache in (key_cache, value_cache)
        )
        padded = torch.zeros(6, context, 16)  # SDPA's causal mask is aligned to the first row
        padded[:, context - (rows[1] - rows[0]) :] = query[slice(*rows)].transpose(0, 1)
        expected = F.scaled_dot_product_attention(
            padded[None], key[None], value[None], is_causal=True, scale=0.25, enable_gqa=True
        )[0, :, context - (rows[1] - rows[0]) :]
        torch.testing.assert_close(out[slice(*rows)], expected.transpose(0, 1), msg=f"slice {i_slice}")
