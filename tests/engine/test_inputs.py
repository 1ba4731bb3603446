"""Inputs and KVCache: the tensors of a batch, exactly."""

from __future__ import annotations

import pytest
import torch

from engine.batch import Batch, Slice
from engine.cache import KVCache
from engine.config import EngineConfig
from engine.errors import InvalidRequest, OutOfCache
from engine.inputs import Inputs
from engine.request import Request
from engine.sequence import Sequence
from tests.engine.fakes import config


def sequence(tokens: list[int], blocks: list[int], computed: int, draft: tuple[int, ...] = ()) -> Sequence:
    made = Sequence(Request("a", tuple(tokens)))
    made.blocks.extend(blocks)
    made.computed = computed
    made.draft.extend(draft)
    return made


def test_a_prefill_chunk_a_decode_and_a_draft_in_one_batch() -> None:
    batch = Batch(
        (
            Slice(sequence([10, 11, 12, 13, 14, 15], [3, 1], 1), 1, 5),
            Slice(sequence([20, 21, 22], [0], 2), 2, 3),
            Slice(sequence([30, 31, 32, 33, 34], [5, 2], 4, (35, 36)), 4, 7),
        )
    )
    inputs = Inputs.of(batch, 4, torch.device("cpu"))
    assert inputs.num_tokens == batch.num_tokens == 8
    assert inputs.token_ids.tolist() == [11, 12, 13, 14, 22, 34, 35, 36]
    assert inputs.positions.tolist() == [1, 2, 3, 4, 2, 4, 5, 6]
    assert inputs.slots.tolist() == [13, 14, 15, 4, 2, 8, 9, 10]
    assert inputs.query_starts.tolist() == [0, 4, 5, 8]
    assert inputs.context_lengths.tolist() == [5, 3, 7]
    assert inputs.block_tables.tolist() == [[3, 1], [0, 0], [5, 2]]
    assert inputs.logit_rows.tolist() == [4, 5, 6, 7]
    assert [piece.num_logits for piece in batch] == [0, 1, 3]
    integer = torch.int32
    assert {inputs.query_starts.dtype, inputs.context_lengths.dtype, inputs.block_tables.dtype} == {integer}
    assert {inputs.token_ids.dtype, inputs.positions.dtype, inputs.slots.dtype, inputs.logit_rows.dtype} == {
        torch.int64
    }


def test_slots_of_a_large_cache_do_not_overflow() -> None:
    inputs = Inputs.of(Batch((Slice(sequence([1], [2**30], 0), 0, 1),)), 16, torch.device("cpu"))
    assert inputs.slots.tolist() == [2**34]


def test_the_cache_is_as_large_as_its_bytes_allow() -> None:
    shape = config()  # one layer, one head of two features: 2 * 2 * 4 bytes a token
    cache = KVCache.fit(shape, EngineConfig(cache_bytes=1000, block_size=8))
    assert (cache.num_blocks, cache.bytes_per_block) == (7, 128)
    key, value = cache.layer(0)
    assert key.shape == value.shape == (7, 1, 8, 2)
    assert key.is_contiguous()
    assert not key.any()
    key.fill_(1.0)
    assert not value.any()
    assert KVCache.fit(shape, EngineConfig(cache_bytes=1000, block_size=8, dtype="bf16")).num_blocks == 15
    assert KVCache.fit(shape, EngineConfig(cache_bytes=1000, num_blocks=3)).num_blocks == 3


def test_a_cache_of_no_block_is_refused() -> None:
    with pytest.raises(OutOfCache, match="cache_bytes=100 is less than one block of 256 bytes"):
        KVCache.fit(config(), EngineConfig(cache_bytes=100))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("dtype", "fp64"),
        ("block_size", 0),
        ("num_blocks", 0),
        ("max_model_len", 0),
        ("num_threads", 0),
        ("token_budget", 63),
    ],
)
def test_a_configuration_that_cannot_be_is_refused(field: str, value: object) -> None:
    with pytest.raises(InvalidRequest) as caught:
        EngineConfig(**{field: value})  # type: ignore[arg-type]
    assert (caught.value.field, caught.value.value) == (field, value)
