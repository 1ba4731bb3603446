"""Torch's own attention in the kernels' place, against the reference."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.attention import varlen

from kernels import reference
from kernels.torch_attention import sdpa_attention, varlen_attention, varlen_reason

SLICES = ((1, 1), (1, 37), (5, 18), (20, 20), (16, 33))  # tokens, context


def case(heads: int, kv_heads: int, block_size: int) -> dict[str, Any]:
    """What no context covers is NaN."""
    torch.manual_seed(heads)
    width = -(-max(context for _, context in SLICES) // block_size)
    shape = (len(SLICES) * width, kv_heads, block_size, 16)
    key, value = (torch.full(shape, torch.nan) for _ in range(2))
    tables = torch.randperm(shape[0]).reshape(len(SLICES), width).int()
    for (_, context), table in zip(SLICES, tables, strict=True):
        for position in range(context):
            place = int(table[position // block_size]), slice(None), position % block_size
            key[place], value[place] = torch.randn(2, kv_heads, 16)
    counts = torch.tensor([count for count, _ in SLICES])
    return {
        "query": torch.randn(int(counts.sum()), heads, 16),
        "key_cache": key,
        "value_cache": value,
        "block_tables": tables,
        "query_starts": torch.tensor([0, *counts.cumsum(0)]).int(),
        "context_lengths": torch.tensor([context for _, context in SLICES]).int(),
        "scale": 0.3,
    }


def without_nan(made: dict[str, Any]) -> dict[str, Any]:
    """For the reference, which reads whole blocks."""
    return {name: value.nan_to_num() if isinstance(value, Tensor) else value for name, value in made.items()}


@pytest.mark.parametrize(("heads", "kv_heads", "block_size"), [(4, 4, 4), (6, 2, 8), (5, 1, 16)])
def test_sdpa(heads: int, kv_heads: int, block_size: int):
    made = case(heads, kv_heads, block_size)
    expected = reference.paged_attention(**without_nan(made))
    hosted = made | {name: made[name].tolist() for name in ("query_starts", "context_lengths")}
    torch.testing.assert_close(sdpa_attention(**hosted), expected, atol=2e-5, rtol=2e-5)


def fake_varlen(
    query: Tensor, key: Tensor, value: Tensor, cu_seq_q: Tensor, cu_seq_k: None, max_q: int, max_k: int, **options: Any
) -> Tensor:
    """torch's documented contract, by the reference: pages of [page_size, Hkv, D], seqused_k valid tokens each."""
    assert cu_seq_k is None
    assert (max_q, max_k) == (20, 37)
    assert (options["window_size"], options["num_splits"], options["enable_gqa"]) == ((-1, 0), 1, True)
    caches = (key.transpose(1, 2), value.transpose(1, 2))
    slices = (options["block_table"], cu_seq_q, options["seqused_k"])
    return reference.paged_attention(query, *caches, *slices, options["scale"])


def test_varlen_is_given_what_torch_documents(monkeypatch: pytest.MonkeyPatch):
    """Torch computes it on GPUs alone, so only the call is seen here."""
    monkeypatch.setattr(varlen, "varlen_attn", fake_varlen)
    made = without_nan(case(6, 2, 8))
    expected = reference.paged_attention(**made)
    torch.testing.assert_close(varlen_attention(**made, longest=(20, 37)), expected)


def test_a_torch_without_pages(monkeypatch: pytest.MonkeyPatch):
    assert varlen_reason() is None or torch.__version__ in str(varlen_reason())
    monkeypatch.setattr(varlen, "varlen_attn", lambda query, key, value: None)
    assert varlen_reason() == f"varlen_attn of torch {torch.__version__} knows no pages (block_table)"
    monkeypatch.delattr(varlen, "varlen_attn")
    assert varlen_reason() == f"torch {torch.__version__} has no varlen_attn"
