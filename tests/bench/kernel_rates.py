"""How long the parts of a step take on this machine's processors, and how near that is to what they can do.

    python -m tests.bench.kernel_rates [--formats fp32/fp32 int8/bf16] [--threads 1] [--repeats 5]

Every format is WEIGHTS/CACHE. The steps are those that the workloads are made of: prompts, decoding, verifying drafts,
and the head, each sequence with blocks of its own. A rate counts multiplications and additions of the matrices alone,
so attention and the rest show as what is missing. Beside them: PyTorch's own fp32 and int8 products at the shape of a
layer's largest matrix and 512 rows, and the share of a step's time that all its products would take at that rate: the
step could be made shorter by the rest at most, by whatever is not a product becoming free. The fastest of the repeats
counts, since a machine can only be disturbed towards slowness.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from rich.console import Console
from rich.table import Table

from db.model_files import find
from db.settings import Settings
from engine.cache import KVCache
from engine.config import EngineConfig
from engine.inputs import Inputs
from engine.models import Model, load_model
from engine.models.config import ModelConfig

BLOCK_SIZE = 16


@dataclass(frozen=True, slots=True)
class Step:
    """`slices` of `length` tokens each, at the end of contexts of `context` tokens, logits for `logits` of each."""

    name: str
    slices: int
    length: int
    context: int
    logits: int


STEPS = (
    Step("prompts, 4 x 128", 4, 128, 128, 1),
    Step("prompt, 512", 1, 512, 512, 1),
    Step("end of a long prompt, 512 of 2,048", 1, 512, 2048, 1),
    Step("decode, 1 at 256", 1, 1, 256, 1),
    Step("decode, 16 at 256", 16, 1, 256, 1),
    Step("decode, 64 at 256", 64, 1, 256, 1),
    Step("decode, 64 at 512", 64, 1, 512, 1),
    Step("verify 4, 16 at 256", 16, 4, 256, 4),
    Step("verify 4, 64 at 256", 64, 4, 256, 4),
)


def inputs_of(step: Step) -> Inputs:
    num_blocks = -(-step.context // BLOCK_SIZE)
    tables = torch.arange(step.slices * num_blocks, dtype=torch.int32).view(step.slices, num_blocks)
    positions = torch.arange(step.context - step.length, step.context).repeat(step.slices)
    blocks = tables.repeat_interleave(step.length, 0).gather(1, (positions // BLOCK_SIZE)[:, None])[:, 0].long()
    rows = torch.arange(step.slices * step.length).view(step.slices, step.length)
    return Inputs(
        token_ids=torch.arange(len(positions)) % 1000,
        positions=positions,
        slots=blocks * BLOCK_SIZE + positions % BLOCK_SIZE,
        query_starts=torch.arange(0, len(positions) + 1, step.length, dtype=torch.int32),
        context_lengths=torch.full((step.slices,), step.context, dtype=torch.int32),
        block_tables=tables,
        logit_rows=rows[:, step.length - step.logits :].flatten().contiguous(),
    )


def flops(config: ModelConfig, step: Step) -> float:
    """Multiplications and additions of the matrices in one step."""
    heads = (2 * config.num_heads + 2 * config.num_kv_heads) * config.head_dim
    layer = config.hidden_size * (heads + 3 * config.intermediate_size)
    head = config.hidden_size * config.vocab_size * step.logits
    return 2.0 * step.slices * (step.length * config.num_layers * layer + head)


def fastest(work: Callable[[], object], repeats: int) -> float:
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return min(times)


def measure(model: Model, cache_dtype: str, step: Step, repeats: int) -> tuple[float, float]:
    """Seconds of the layers and of the head."""
    config, inputs = model.config, inputs_of(step)
    cache = KVCache.fit(
        config, EngineConfig(num_blocks=inputs.block_tables.numel(), block_size=BLOCK_SIZE, kv_dtype=cache_dtype)
    )
    with torch.inference_mode():
        hidden = model.forward(inputs, cache)
        return (
            fastest(lambda: model.forward(inputs, cache), repeats),
            fastest(lambda: model.logits(hidden), repeats),
        )


def products(config: ModelConfig, rows: int, repeats: int) -> dict[str, float]:
    """PyTorch's rates, in operations per second, for the largest matrix of a layer."""
    size = (2 * config.intermediate_size, config.hidden_size)
    x, weight = torch.randn(rows, size[1]), torch.randn(size)
    operations = 2.0 * rows * size[0] * size[1]
    x8, weight8 = x.to(torch.int8), weight.to(torch.int8).t()
    return {
        "fp32": operations / fastest(lambda: torch.nn.functional.linear(x, weight), 4 * repeats),
        "int8": operations / fastest(lambda: torch._int_mm(x8, weight8), 4 * repeats),
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--formats", nargs="+", default=["fp32/fp32", "int8/bf16"])
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    console = Console()
    path = find("smollm2-135m", Settings())
    for name in options.formats:
        weights, cache = name.split("/")
        model = load_model(path, weights)
        table = Table(
            "step", "layers, ms", "head, ms", "G/s", "products' share", title=f"{name}, {options.threads} threads"
        )
        own = products(model.config, 512, options.repeats)["int8" if weights == "int8" else "fp32"]
        for step in STEPS:
            layers, head = measure(model, cache, step, options.repeats)
            rate = flops(model.config, step) / (layers + head) / 1e9
            share = f"{1e9 * rate / own:.2f}"
            table.add_row(step.name, f"{1e3 * layers:.1f}", f"{1e3 * head:.1f}", f"{rate:.0f}", share)
        console.print(table)
        console.print(f"PyTorch's products: {own / 1e9:.0f} G/s")


if __name__ == "__main__":
    main()
