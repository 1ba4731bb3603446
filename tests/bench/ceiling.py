"""How near the engine is to what this machine's processors could do at most on the workloads.

    python -m tests.bench.ceiling [--dtypes int8 fp32] [--repetitions 2] [--results FILE]

Counts the operations that a workload cannot do without (the matrices for every token that is computed, attention over
its context, the head for every token that is chosen), and takes them at the highest rate that any product of ours
reaches here: the head over many rows, nothing but products, and no row of logits written. The rows per second that this
would give are the ceiling: norms, rounding, exponentials, memory and scheduling would have to cost nothing. Beside it:
what the engine reaches, and what share of the ceiling each bar of `make bench` asks for, by the other engines' rates in
the newest file of tests/bench/results (which was measured at another time: a quiet machine is needed for both).
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table

from db.model_files import find
from db.settings import Settings
from engine import EngineConfig, EngineStats, LoadedModel, Output, load
from engine.models import Model, load_model
from engine.models.config import ModelConfig
from engine.models.model import GreedyModel
from tests.bench.bench import BARS, RESULTS
from tests.bench.speculation import requests
from tests.bench.workloads import NAMES, salted
from tests.bench.workloads import load as load_workload

PEAK_ROWS = (56, 112, 224)
SALT = 400


def peak(model: Model) -> float:
    """Operations per second of the fastest product."""
    config = model.config
    assert isinstance(model, GreedyModel), "the native decoder takes the largest logit itself"
    best = 0.0
    for rows in PEAK_ROWS:
        hidden = torch.randn(rows, config.hidden_size)
        for _ in range(8):
            start = time.perf_counter()
            model.largest(hidden, None, None)
            best = max(best, 2.0 * rows * config.hidden_size * config.vocab_size / (time.perf_counter() - start))
    return best


def operations(config: ModelConfig, before: EngineStats, after: EngineStats, outputs: list[Output]) -> float:
    """Multiplications and additions that the outputs took."""
    heads = (2 * config.num_heads + 2 * config.num_kv_heads) * config.head_dim
    token = config.num_layers * config.hidden_size * (heads + 3 * config.intermediate_size)
    computed = after.computed_tokens - before.computed_tokens
    chosen = sum(output.num_output_tokens for output in outputs)
    positions = 0.0
    for output in outputs:
        length, cached = output.num_prompt_tokens + output.num_output_tokens, output.num_cached_tokens
        positions += (length * (length + 1) - cached * (cached + 1)) / 2
    attention = 2 * config.num_layers * config.num_heads * config.head_dim * positions
    return 2.0 * (computed * token + chosen * config.hidden_size * config.vocab_size + attention)


def run(model: LoadedModel, config: ModelConfig, name: str, salt: int) -> tuple[float, float]:
    """Rows per second, and operations per row."""
    wanted = requests(salted(load_workload(name), salt), (name, salt))
    before, start = model.engine.stats(), time.perf_counter()
    outputs = list(model.engine.generate(wanted))
    seconds = time.perf_counter() - start
    total = operations(config, before, model.engine.stats(), outputs)
    return len(wanted) / seconds, total / len(wanted)


def needed(results: Path | None) -> dict[tuple[str, str], tuple[str, float]]:
    """By contender and workload: whose rate a bar is a multiple of, and the rows per second that reach it."""
    if results is None:
        return {}
    runs = json.loads(results.read_text())["runs"]
    found = {}
    for (ours, theirs, workload), bar in BARS.items():
        rates = [r["rows"] / r["seconds"] for r in runs if (r["contender"], r["workload"]) == (theirs, workload)]
        if rates and not theirs.startswith("transformers"):
            found[ours, workload] = (f"{bar} x {theirs}", bar * statistics.median(rates))
    return found


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--dtypes", nargs="+", default=["int8", "fp32"])
    parser.add_argument("--repetitions", type=int, default=2)
    parser.add_argument("--results", type=Path, default=max(RESULTS.glob("cpu-*.json"), default=None))
    options = parser.parse_args()
    bars = needed(options.results)
    table = Table(
        "format", "workload", "G/row", "rows/s", "ceiling, rows/s", "reached", "bar", "rows/s for it", "asks for"
    )
    shares = []
    for dtype in options.dtypes:
        path = find("smollm2-135m", Settings())
        model = load(path, EngineConfig(dtype=dtype, max_sequences=64, cache_bytes=512 << 20))
        bare = load_model(path, dtype)
        most, config = peak(bare), bare.config
        for workload in NAMES:
            run(model, config, workload, SALT)  # measures what steps cost, compiles schemas
            measured = [run(model, config, workload, SALT + 1 + i) for i in range(options.repetitions)]
            rate = statistics.median(rows for rows, _ in measured)
            each = statistics.median(cost for _, cost in measured)
            ceiling = most / each
            bar, wanted = bars.get((f"nightmill-{dtype}", workload), ("", 0.0))
            asked = [f"{wanted:.2f}", f"{wanted / ceiling:.0%}"] if wanted else ["", ""]
            shares.append(f"{dtype} {workload} {rate / ceiling:.0%} of {ceiling:.2f} (bar {asked[1] or 'none'})")
            row = [dtype, workload, f"{each / 1e9:.1f}", f"{rate:.2f}", f"{ceiling:.2f}", f"{rate / ceiling:.0%}"]
            table.add_row(*row, bar, *asked)
        print(f"{dtype}: the fastest product does {most / 1e9:.0f} G/s on {torch.get_num_threads()} threads")
    Console(width=150).print(table)
    print("share of the ceiling in rows/s: " + "; ".join(shares))
    return 0


if __name__ == "__main__":
    sys.exit(main())
