"""Paged attention against reference.paged_attention."""

from __future__ import annotations

import pytest
import torch

from kernels import reference
from kernels.gpu import attention
from kernels.gpu.attention import SPLIT, paged_attention
from tests.gpu.cases import TOLERANCE, Slices, slices

SCALE = 0.3
# (query tokens, context): decode, verified drafts, prompts, chunks after a prefix, lengths around every boundary.
MIXED = [(1, 1), (1, 64), (1, 65), (4, 4), (3, 130), (16, 100), (17, 17), (33, 97), (1, 200), (40, 40)]


def check(case: Slices, split: int) -> torch.Tensor:
    out = paged_attention(case.query, case.key_cache, case.value_cache, case.plan(split), SCALE)
    expected = reference.paged_attention(
        case.query, case.key_cache, case.value_cache, case.block_tables, case.query_starts, case.context_lengths, SCALE
    )
    tolerance = TOLERANCE[case.query.dtype]
    torch.testing.assert_close(out, expected, atol=tolerance, rtol=tolerance)
    return out


@pytest.mark.parametrize(("dtype", "block_size"), [(torch.float32, 16), (torch.bfloat16, 64)])
def test_slices_of_every_kind_in_one_batch(dtype: torch.dtype, block_size: int):
    check(slices(MIXED, dtype=dtype, block_size=block_size), split=64)


@pytest.mark.parametrize(("num_heads", "num_kv_heads", "head_dim"), [(3, 3, 24), (5, 1, 64), (20, 1, 16)])
def test_heads_that_fill_no_tile(num_heads: int, num_kv_heads: int, head_dim: int):
    case = slices([(1, 70), (5, 9), (18, 30)], num_heads=num_heads, num_kv_heads=num_kv_heads, head_dim=head_dim)
    check(case, split=64)


def test_the_split_that_is_used():
    check(slices([(1, 2 * SPLIT + 3), (2, SPLIT)], block_size=64), split=SPLIT)


def test_blocks_smaller_than_a_vector():
    check(slices([(1, 9), (2, 21), (19, 23)], block_size=4), split=64)


def test_a_slice_does_not_feel_its_neighbours_to_the_bit():
    case = slices(MIXED)
    together = paged_attention(case.query, case.key_cache, case.value_cache, case.plan(64), SCALE)
    for i_slice in range(len(MIXED)):
        own = case.only(i_slice)
        alone = paged_attention(own.query, own.key_cache, own.value_cache, own.plan(64), SCALE)
        rows = slice(int(case.query_starts[i_slice]), int(case.query_starts[i_slice + 1]))
        assert torch.equal(alone, together[rows])


def test_padding_makes_no_work():
    """Slices without tokens or context at the end, and rows of no slice, as padded steps have them."""
    case = slices([(1, 70), (2, 5)])
    padded = Slices(
        torch.cat((case.query, torch.full((3, 4, 32), torch.nan))),
        case.key_cache,
        case.value_cache,
        torch.cat((case.block_tables, case.block_tables[:1])),
        torch.cat((case.query_starts, case.query_starts[-1:])),
        torch.cat((case.context_lengths, case.context_lengths[:1] * 0)),
    )
    out = paged_attention(padded.query, case.key_cache, case.value_cache, padded.plan(64), SCALE)
    assert torch.equal(out[:3], check(case, 64))
    assert torch.count_nonzero(out[3:]) == 0


def test_fp8_keys_and_values_with_scales():
    case = slices([(1, 100), (3, 7), (20, 45)], dtype=torch.bfloat16)
    scales = torch.tensor([0.5, 0.02]), torch.tensor([0.25, 0.1])
    key, value = (
        (cache.float().nan_to_num(0.0) / own[:, None, None]).clamp(-448, 448).to(torch.float8_e4m3fn)
        for cache, own in zip((case.key_cache, case.value_cache), scales, strict=True)
    )
    out = paged_attention(case.query, key, value, case.plan(64), SCALE, scales)
    wide = (cache.float() * own[:, None, None] for cache, own in zip((key, value), scales, strict=True))
    expected = reference.paged_attention(
        case.query.float(), *wide, case.block_tables, case.query_starts, case.context_lengths, SCALE
    )
    torch.testing.assert_close(out.float(), expected, atol=1.6e-2, rtol=1.6e-2)


def test_offsets_beyond_2_to_the_31():
    """A cache of more than 2^31 numbers, of which only the last block is ever touched."""
    head_dim, block_size = 128, 64
    num_blocks = 2**31 // (block_size * head_dim) + 2
    key, value = (torch.randn(20, 1, head_dim) for _ in range(2))
    cache = torch.zeros(0, dtype=torch.float8_e4m3fn).new_empty((2, num_blocks, 1, block_size, head_dim))
    assert cache[0].numel() > 2**31
    cache[:, -1] = 0.0
    cache[0, -1, 0, :20], cache[1, -1, 0, :20] = key[:, 0], value[:, 0]
    query = torch.randn(21, 2, head_dim)
    starts, contexts = torch.tensor([0, 1, 21], dtype=torch.int32), torch.tensor([20, 20], dtype=torch.int32)
    tables = torch.tensor([[num_blocks - 1]] * 2, dtype=torch.int32)
    ones = torch.ones(1), torch.ones(1)
    case = Slices(query, cache[0], cache[1], tables, starts, contexts)
    out = paged_attention(query, cache[0], cache[1], case.plan(SPLIT), SCALE, ones)
    small = [part[-1:].float() for part in cache]
    expected = reference.paged_attention(query, *small, tables * 0, starts, contexts, SCALE)
    torch.testing.assert_close(out, expected, atol=2e-5, rtol=2e-5)


def test_the_plan_of_more_slices_than_are_planned_at_a_time(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(attention, "PLANNED", 4)
    counts, contexts = [1, 16, 17, 3, 1, 40, 2, 16, 1], [64, 65, 17, 500, 0, 90, 2, 16, 129]
    starts = torch.tensor([0, *torch.tensor(counts).cumsum(0)], dtype=torch.int32)
    plan = planned(starts, torch.tensor(contexts, dtype=torch.int32))
    items = [1, 2 * 2, 0, 1 * 8, 0, 0, 1, 2, 3]
    tiles = [0, 0, 1, 0, 0, 2, 0, 0, 0]
    assert plan.items.tolist() == [0, *torch.tensor(items).cumsum(0)]
    assert plan.tiles.tolist() == [0, *torch.tensor(tiles).cumsum(0)]
    assert attention.bounds(starts.diff().numpy(), torch.tensor(contexts).numpy(), 2, split=64) == (19, 3)


def planned(starts: torch.Tensor, contexts: torch.Tensor) -> attention.AttentionPlan:
    slots, tables = torch.zeros(1, dtype=torch.int64), torch.zeros((len(contexts), 1), dtype=torch.int32)
    heads = {"num_heads": 2, "num_kv_heads": 1, "head_dim": 16}
    return attention.AttentionPlan.of(slots, tables, starts, contexts, **heads, most_items=1, most_tiles=1, split=64)
