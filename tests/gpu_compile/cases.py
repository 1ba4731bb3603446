"""Every kernel through its host wrapper, at the shapes of Llama-3-8B (32 query heads, 8 key heads, head dim 128)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from kernels.blocks import Blocks, PackedBlocks
from kernels.gpu.activation import silu_and_mul, silu_and_mul_quantised
from kernels.gpu.attention import AttentionPlan, bounds, paged_attention
from kernels.gpu.bitmask import apply_token_bitmask
from kernels.gpu.cache import write_cache
from kernels.gpu.codes import packed_linear
from kernels.gpu.matmul import int8_linear
from kernels.gpu.norm import add_rms_norm, add_rms_norm_quantised, rms_norm
from kernels.gpu.rope import rope
from kernels.gpu.sampling import sample, token_logprobs
from kernels.gpu.steps import accept, prepare_inputs

BF16, FP8 = torch.bfloat16, torch.float8_e4m3fn
HIDDEN, INTERMEDIATE, VOCAB = 4096, 14336, 128256


@dataclass(frozen=True)
class Case:
    """`arches` that have what it needs; `tensor_cores`: kernels that must use them."""

    name: str
    launch: Callable[[], object]
    arches: tuple[int, ...] = (80, 90)
    tensor_cores: tuple[str, ...] = ()
    quick: bool = False  # compiled in every test run


def attention(num_heads: int, num_kv_heads: int, head_dim: int, block_size: int, cache: torch.dtype) -> object:
    """A decode over two stretches and a prompt."""
    counts, contexts = np.array([1, 40]), np.array([600, 40])
    most_items, most_tiles = bounds(counts, contexts, num_heads // num_kv_heads)
    starts = torch.tensor([0, 1, 41], dtype=torch.int32)
    plan = AttentionPlan.of(
        torch.zeros(41, dtype=torch.int64),
        torch.zeros((2, 40), dtype=torch.int32),
        starts,
        torch.tensor(contexts, dtype=torch.int32),
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        most_items=most_items,
        most_tiles=most_tiles,
    )
    caches = torch.zeros((2, 40, num_kv_heads, block_size, head_dim), dtype=cache)
    scales = (torch.ones(num_kv_heads), torch.ones(num_kv_heads)) if cache == FP8 else None
    query = torch.zeros((41, num_heads, head_dim), dtype=BF16)
    return paged_attention(query, *caches, plan, head_dim**-0.5, scales)


def written(cache: torch.dtype) -> None:
    qkv = torch.zeros((4, 48, 128), dtype=BF16)
    caches = torch.zeros((2, 4, 8, 16, 128), dtype=cache)
    scales = (torch.ones(8), torch.ones(8)) if cache == FP8 else None
    write_cache(qkv[:, 32:40], qkv[:, 40:], *caches, torch.zeros(4, dtype=torch.int64), scales)


def sampled() -> object:
    rows = [torch.zeros(4, dtype=dtype) for dtype in (*[torch.float32] * 4, *[torch.int64] * 2)]
    rows[1] = rows[1].int()
    return sample(torch.zeros((4, VOCAB)), *rows)


def hidden(width: int = HIDDEN) -> torch.Tensor:
    return torch.zeros((4, width), dtype=BF16)


def norms() -> None:
    weight = torch.zeros(HIDDEN, dtype=BF16)
    rms_norm(hidden(), weight, 1e-5)
    add_rms_norm(hidden(), hidden(), weight, 1e-5)


def prepared() -> None:
    index = [torch.zeros(5, dtype=torch.int32), *[torch.zeros(4, dtype=torch.int32) for _ in range(2)]]
    fed = (index[1], index[1], torch.zeros(4, dtype=torch.int64))
    prepare_inputs(*index, index[0], torch.zeros((4, 40), dtype=torch.int32), 16, *fed, 4, 4)


def norm_quantised(dtype: torch.dtype) -> object:
    return add_rms_norm_quantised(hidden(), hidden(), torch.zeros(HIDDEN, dtype=BF16), 1e-5, dtype)


def int8_product(num_rows: int) -> object:
    values, weight = (torch.zeros((size, HIDDEN), dtype=torch.int8) for size in (num_rows, HIDDEN))
    return int8_linear(values, torch.ones((num_rows, 1)), weight, torch.ones((HIDDEN, 1)), BF16)


def product_with_codes(num_rows: int, bits: int, group: int) -> object:
    matrix = PackedBlocks.of(Blocks.of(torch.zeros((256, HIDDEN)), bits, group), torch.device("cpu"))
    return packed_linear(torch.zeros((num_rows, HIDDEN), dtype=BF16), matrix)


MMA = ("short_kernel", "long_kernel")
NAMES = [("page 16", 16), ("page 64", 64)]
CASES = [
    *(
        Case(f"attention, {name}", lambda size=size: attention(32, 8, 128, size, BF16), (80, 90), MMA, size == 16)  # type: ignore[misc]
        for name, size in NAMES
    ),
    Case("attention, 1B shape", lambda: attention(32, 8, 64, 16, BF16), (80, 90), MMA),
    Case("attention, no groups", lambda: attention(32, 32, 128, 16, BF16), (80, 90), MMA),
    Case("attention, head dim 80", lambda: attention(16, 8, 80, 16, BF16), (80, 90), MMA),
    # Ampere has no fp8.
    Case("attention, fp8 keys and values", lambda: attention(32, 8, 128, 16, FP8), (90,), MMA),
    Case("cache writing", lambda: written(BF16)),
    Case("cache writing as fp8", lambda: written(FP8), (90,)),
    Case("norms", norms),
    Case("norm to int8", lambda: norm_quantised(torch.int8)),
    Case("norm to fp8", lambda: norm_quantised(FP8), (90,)),
    Case("rope", lambda: rope(torch.zeros((4, 40, 128), dtype=BF16), *torch.zeros((2, 4, 1, 128), dtype=BF16))),
    Case("SiLU", lambda: silu_and_mul(hidden(2 * INTERMEDIATE))),
    Case("SiLU to int8", lambda: silu_and_mul_quantised(hidden(2 * INTERMEDIATE), torch.int8)),
    Case("SiLU to fp8", lambda: silu_and_mul_quantised(hidden(2 * INTERMEDIATE), FP8), (90,)),
    *(
        Case(f"int8 product, {rows} rows", lambda rows=rows: int8_product(rows), (80, 90), ("_int8_kernel",))  # type: ignore[misc]
        for rows in (4, 64, 512)
    ),
    *(
        Case(
            f"{bits}-bit weights, groups of {group}, {rows} rows",
            lambda rows=rows, bits=bits, group=group: product_with_codes(rows, bits, group),  # type: ignore[misc]
            (80, 90),
            ("_packed_kernel",),
        )
        for bits in (4, 8)
        for group in (32, 128)
        for rows in (4, 64)
    ),
    Case(
        "bitmask",
        lambda: apply_token_bitmask(
            torch.zeros((4, VOCAB)), torch.zeros(4, dtype=torch.int64), torch.zeros((4, VOCAB // 32), dtype=torch.int32)
        ),
    ),
    Case("sampling", sampled, quick=True),
    Case("log-probabilities", lambda: token_logprobs(torch.zeros((4, VOCAB)), torch.zeros(4, dtype=torch.int64))),
    Case("input preparation", prepared),
    Case(
        "draft acceptance",
        lambda: accept(*torch.zeros((2, 4), dtype=torch.int64), torch.zeros(5, dtype=torch.int32)),
    ),
]
