"""Ceilings of the device, and the kernels alone: right, how near to the ceilings, independent of the batch."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from engine.determinism import make_deterministic
from kernels import reference
from kernels.gpu.attention import AttentionPlan, bounds, paged_attention
from kernels.gpu.cache import write_cache
from tests.bench.gpu_stages.peers import peers
from tests.bench.gpu_stages.shapes import Place, normal, shape

DECODE_TARGET, PROMPT_TARGET = 3.2, 400  # TB/s from 128 sequences of 1,024 tokens on, TFLOP/s at 8,192
Lengths = list[tuple[int, int]]  # (query tokens, context) of each slice


class Case:
    """Slices over a paged cache of random numbers, blocks in random order."""

    def __init__(self, lengths: Lengths, place: Place, *, block_size: int = 16, fp8: bool = False) -> None:
        config = shape("tiny" if place.reduced else "8b")
        counts, contexts = (np.array(part) for part in zip(*lengths, strict=True))
        needed = -(-contexts // block_size)
        size = (int(needed.sum()) + 1, config.num_kv_heads, block_size, config.head_dim)
        kind = torch.float8_e4m3fn if fp8 else place.dtype
        self.caches = [normal(*size, place=place, dtype=kind) for _ in range(2)]
        self.scales = None
        if fp8:
            self.scales = tuple(torch.ones(config.num_kv_heads, device=place.device) for _ in range(2))
        order = torch.randperm(size[0], device=place.device).int()
        starts = np.concatenate(([0], needed.cumsum()))
        rows = [F.pad(order[a:b], (0, int(needed.max()) - (b - a))) for a, b in pairwise(starts)]
        self.tables = torch.stack(rows)
        self.starts = torch.tensor([0, *counts.cumsum()], dtype=torch.int32, device=place.device)
        self.contexts = torch.tensor(contexts, dtype=torch.int32, device=place.device)
        self.query = normal(int(counts.sum()), config.num_heads, config.head_dim, place=place)
        self.scale = config.head_dim**-0.5
        work = bounds(counts, contexts, config.num_heads // config.num_kv_heads)
        self.plan = AttentionPlan.of(
            torch.zeros(len(self.query), dtype=torch.int64, device=place.device),
            self.tables,
            self.starts,
            self.contexts,
            num_heads=config.num_heads,
            num_kv_heads=config.num_kv_heads,
            head_dim=config.head_dim,
            most_items=work[0],
            most_tiles=work[1],
        )
        self.read = 2 * int(contexts.sum()) * config.kv_size * kind.itemsize  # bytes
        before = contexts - counts
        self.flops = 4 * config.query_size * float((counts * before + counts * (counts + 1) / 2).sum())

    def run(self) -> torch.Tensor:
        return paged_attention(self.query, *self.caches, self.plan, self.scale, self.scales)

    def error(self) -> float:
        """The largest difference from the reference in fp32, of the largest result."""
        wide = [cache.float() for cache in self.caches]
        expected = reference.paged_attention(
            self.query.float(), *wide, self.tables, self.starts, self.contexts, self.scale
        )
        found = self.run().float()
        assert bool(found.isfinite().all())
        return float((found - expected).abs().max() / expected.abs().max())


def ceilings(place: Place) -> Iterator[dict[str, Any]]:
    """A copy, and the products of Llama-3-8B in bf16 and row-wise fp8."""
    size = 1 << (16 if place.reduced else 30)
    source = normal(size, place=place)
    target = torch.empty_like(source)
    seconds = place.seconds(lambda: target.copy_(source))
    yield {"what": "copy", "TB/s": 2 * size * source.element_size() / seconds / 1e12}
    config = shape("tiny" if place.reduced else "8b")
    products = {
        "qkv": (config.hidden_size, config.query_size + 2 * config.kv_size),
        "gate-up": (config.hidden_size, 2 * config.intermediate_size),
        "down": (config.intermediate_size, config.hidden_size),
        "square": (64, 64) if place.reduced else (8192, 8192),
    }
    for rows in (8,) if place.reduced else (64, 512, 8192):
        for name, (depth, width) in products.items():
            x, weight = normal(rows, depth, place=place), normal(width, depth, place=place)
            flops = 2.0 * rows * depth * width
            line: dict[str, Any] = {"what": f"{name} of {rows} rows"}
            line["bf16 TFLOP/s"] = flops / place.seconds(lambda x=x, weight=weight: F.linear(x, weight)) / 1e12
            if not place.reduced:
                values, scales = reference.quantise_rows_fp8(x)
                matrix, columns = reference.quantise_rows_fp8(weight)

                def product(v=values, m=matrix, s=scales, c=columns):  # type: ignore[no-untyped-def]
                    return torch._scaled_mm(v, m.t(), s, c.t(), out_dtype=torch.bfloat16)

                line["fp8 TFLOP/s"] = flops / place.seconds(product) / 1e12
            yield line


def correctness(place: Place) -> Iterator[dict[str, Any]]:
    """Fresh random slices of every kind against the reference."""
    generator = np.random.default_rng()
    longest = 70 if place.reduced else 3000
    worst = 0.0
    count = 2 if place.reduced else 40
    for i_case in range(count):
        lengths = []
        for _ in range(3 if place.reduced else 12):
            context = int(generator.integers(1, longest))
            tokens = int(generator.choice([1, 4, 16, 17, context]))
            lengths.append((min(tokens, context), context))
        case = Case(lengths, place, block_size=(16, 64)[i_case % 2], fp8=i_case % 5 == 4)
        worst = max(worst, case.error())
    limit = 1e-4 if place.reduced else 1e-2
    yield {"what": "attention", "cases": count, "relative error": worst, "passed": worst < limit}
    if not place.reduced:
        yield _far(place)


def _far(place: Place) -> dict[str, Any]:
    """Reading and writing beyond 2^31 numbers of a cache."""
    num_blocks = 2**31 // (8 * 16 * 128) + 2
    caches = [torch.zeros((num_blocks, 8, 16, 128), dtype=place.dtype, device=place.device) for _ in range(2)]
    key, value = normal(1, 8, 128, place=place), normal(1, 8, 128, place=place)
    write_cache(key, value, *caches, torch.tensor([num_blocks * 16 - 1], device=place.device))
    same = bool((caches[0][-1, :, -1] == key[0]).all() and (caches[1][-1, :, -1] == value[0]).all())
    # A context in the last blocks gives what a small copy of them gives.
    for cache in caches:
        cache[-2:].normal_()
    results = []
    for tensors, first in ((caches, num_blocks - 2), ([cache[-2:].clone() for cache in caches], 0)):
        index = [torch.tensor(part, dtype=torch.int32, device=place.device) for part in ([0, 1], [32])]
        table = torch.tensor([[first, first + 1]], dtype=torch.int32, device=place.device)
        slots = torch.zeros(1, dtype=torch.int64, device=place.device)
        sizes = {"num_heads": 32, "num_kv_heads": 8, "head_dim": 128, "most_items": 1, "most_tiles": 0}
        plan = AttentionPlan.of(slots, table, *index, **sizes)
        torch.manual_seed(1)
        results.append(paged_attention(normal(1, 32, 128, place=place), *tensors, plan, 128**-0.5))
    same = same and bool((results[0] == results[1]).all())
    return {"what": "offsets beyond 2^31", "passed": same}


def bandwidth(place: Place) -> Iterator[dict[str, Any]]:
    """Decodes by the bytes of keys and values that they read, prompts by their products; torch's own beside them."""
    config = shape("tiny" if place.reduced else "8b")
    batches, contexts = ((2,), (40,)) if place.reduced else ((64, 128, 256, 512), (512, 1024, 4096))
    for block_size in (16, 64):
        for batch in batches:
            for context in contexts:
                if batch * context <= 1 << 20:
                    case = Case([(1, context)] * batch, place, block_size=block_size)
                    rate = case.read / place.seconds(case.run) / 1e12
                    line = {"what": f"decode {batch} x {context}, page {block_size}", "TB/s": rate}
                    if batch >= 128 and context >= 1024:
                        line["passed"] = rate >= DECODE_TARGET
                    yield line
    batch, context = (2, 40) if place.reduced else (256, 1024)
    for name, seconds in peers(place, config, batch, 1, context):
        read = 2 * batch * context * config.kv_size * place.dtype.itemsize
        rate = read / seconds / 1e12 if seconds else None
        yield {"what": f"decode {batch} x {context}, {name}, dense", "TB/s": rate}
    for name, lengths, fp8 in (
        ("verify 4 tokens", [(4, context)] * batch, False),
        ("decode, fp8 keys and values", [(1, context)] * batch, True),
    ):
        case = Case(lengths, place, fp8=fp8)
        yield {"what": f"{name}, {batch} x {context}", "TB/s": case.read / place.seconds(case.run) / 1e12}
    length = 40 if place.reduced else 8192
    for block_size in (16, 64):
        case = Case([(length, length)], place, block_size=block_size)
        rate = case.flops / place.seconds(case.run) / 1e12
        passed = {} if place.reduced else {"passed": rate >= PROMPT_TARGET}
        yield {"what": f"prompt of {length}, page {block_size}", "TFLOP/s": rate} | passed
    for name, seconds in peers(place, config, 1, length, length):
        rate = case.flops / seconds / 1e12 if seconds else None
        yield {"what": f"prompt of {length}, {name}, dense", "TFLOP/s": rate}


def invariance(place: Place) -> Iterator[dict[str, Any]]:
    """Whether a row's bits depend on the rows beside it."""
    length = 40 if place.reduced else 1000
    case = Case([(1, length), (3, 77), (20, 50), (1, 600 if not place.reduced else 30)], place)
    together = case.run()
    case.starts, case.contexts, case.tables = (
        case.starts[:2].clone(),
        case.contexts[:1].clone(),
        case.tables[:1].clone(),
    )
    alone = AttentionPlan.of(
        case.plan.slots[:1], case.tables, case.starts, case.contexts,
        num_heads=case.query.shape[1], num_kv_heads=case.caches[0].shape[1], head_dim=case.query.shape[2],
        most_items=case.plan.partial.shape[0], most_tiles=0,
    )  # fmt: skip
    own = paged_attention(case.query[:1], *case.caches, alone, case.scale)
    yield {"what": "attention", "passed": bool((own[0] == together[0]).all())}
    config = shape("tiny" if place.reduced else "8b")
    weight = normal(2 * config.intermediate_size, config.hidden_size, place=place)
    x = normal(1024, config.hidden_size, place=place)
    if not place.reduced:
        yield _cost_of_determinism(weight, x[:512], place)
    sizes = [1, 7, 64, 200, 1024]
    rows = [F.linear(x[:size], weight)[0] for size in sizes]
    equal = [size for size, row in zip(sizes, rows, strict=True) if bool((row == rows[-1]).all())]
    yield {"what": "product's first row, by the number of rows", "as among 1024": equal}


def _cost_of_determinism(weight: torch.Tensor, x: torch.Tensor, place: Place) -> dict[str, Any]:
    """The same product with cuBLAS's own choice, and as EngineConfig.deterministic sets it."""
    free = place.seconds(lambda: F.linear(x, weight))
    make_deterministic()
    held = place.seconds(lambda: F.linear(x, weight))
    return {"what": "a product of 512 rows, deterministic", "time, free = 1": held / free}
