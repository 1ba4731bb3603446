"""The fast CPU ops against the reference."""

from __future__ import annotations

import pytest
import torch

from kernels import cpu, reference
from kernels.cpu import AttentionPlan

HEADS, KV_HEADS, HEAD_DIM, BLOCK_SIZE = 6, 2, 16, 4
TOLERANCES = {torch.float32: 2e-6, torch.bfloat16: 2e-2}


class Step:
    """Random queries, keys and values of slices (rows, context) over a shuffled cache."""

    def __init__(self, slices: list[tuple[int, int]], dtype: torch.dtype) -> None:
        generator = torch.Generator().manual_seed(len(slices))
        num_blocks = [-(-context // BLOCK_SIZE) for _, context in slices]
        total = sum(rows for rows, _ in slices)
        order = torch.randperm(sum(num_blocks) + 2, generator=generator)
        self.tables = torch.zeros(len(slices), max(num_blocks), dtype=torch.int32)
        slots = []
        for i_slice, (rows, context) in enumerate(slices):
            own, order = order[: num_blocks[i_slice]], order[num_blocks[i_slice] :]
            self.tables[i_slice, : len(own)] = own
            positions = torch.arange(context - rows, context)
            slots.append(own[positions // BLOCK_SIZE] * BLOCK_SIZE + positions % BLOCK_SIZE)
        self.slots = torch.cat(slots)
        self.starts = torch.tensor([0, *(rows for rows, _ in slices)]).cumsum(0).int()
        self.contexts = torch.tensor([context for _, context in slices], dtype=torch.int32)
        shape = (sum(num_blocks) + 2, KV_HEADS, BLOCK_SIZE, HEAD_DIM)
        self.key_cache, self.value_cache = torch.randn(2, *shape, generator=generator).to(dtype)
        self.key, self.value = torch.randn(2, total, KV_HEADS, HEAD_DIM, generator=generator).to(dtype)
        self.query = torch.randn(total, HEADS, HEAD_DIM, generator=generator).to(dtype)
        self.plan = AttentionPlan.of(self.slots, self.tables, self.starts, self.contexts, torch.Size(shape), dtype)

    def fast(self) -> torch.Tensor:
        cpu.write_cache(self.key, self.value, self.key_cache, self.value_cache, self.plan)
        return cpu.paged_attention(self.query, self.key, self.value, self.key_cache, self.value_cache, self.plan, 0.25)


SLICES = {
    "one token, first position": [(1, 1)],
    "one token, full block": [(1, 4), (1, 16), (1, 17)],
    "one chunk that is its context": [(7, 7)],
    "one chunk behind a context": [(3, 11)],
    "two tokens at a block's edge": [(2, 5), (2, 4)],
    "everything mixed": [(1, 30), (5, 5), (1, 3), (4, 21), (1, 31), (1, 64), (2, 2), (1, 100)],
}


@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("name", SLICES)
def test_against_the_reference(name, dtype):
    step = Step(SLICES[name], dtype)
    key_cache, value_cache = step.key_cache.clone(), step.value_cache.clone()
    reference.write_cache(step.key, step.value, key_cache, value_cache, step.slots)
    out = step.fast()
    assert torch.equal(step.key_cache, key_cache)
    assert torch.equal(step.value_cache, value_cache)
    expected = reference.paged_attention(
        step.query, key_cache, value_cache, step.tables, step.starts, step.contexts, 0.25
    )
    torch.testing.assert_close(out, expected, atol=TOLERANCES[dtype], rtol=0)


def test_single_tokens_are_grouped_by_buckets_of_blocks():
    plan = Step(SLICES["everything mixed"], torch.float32).plan
    # Contexts 3, 30, 31, 64 and 100 fill 1, 8, 8, 16 and 25 blocks: buckets of 4, 8, 16 and 28.
    assert [group.rows.tolist() for group in plan.singles] == [[6], [0, 11], [12], [15]]
    assert [group.mask.shape[-1] for group in plan.singles] == [16, 32, 64, 112]
    assert [(chunk.start, chunk.stop, chunk.context) for chunk in plan.chunks] == [(1, 6, 5), (7, 11, 21), (13, 15, 2)]
    assert [chunk.blocks is None for chunk in plan.chunks] == [True, False, True]


def test_positions_beyond_the_context_do_not_matter():
    step = Step([(1, 5), (3, 6)], torch.float32)
    before = step.fast()
    for i_slice, context in enumerate(step.contexts.tolist()):
        block, offset = step.tables[i_slice, (context - 1) // BLOCK_SIZE], (context - 1) % BLOCK_SIZE
        step.key_cache[block, :, offset + 1 :] = 1e4
        step.value_cache[block, :, offset + 1 :] = 1e4
    assert torch.equal(step.fast(), before)
