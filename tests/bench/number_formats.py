"""What number formats of weights cost and bring on this CPU: time, memory and quality of the demo model in each.

    python -m tests.bench.number_formats [--formats fp32 int4_weight_only …] [--prompts 8] [--repeats 5]

Times are of steps that decode some rows at contexts of 64 tokens, head included, on one thread; the fastest of the
repeats counts. Memory is what a process of its own grew by when it loaded the model. Quality is that of quality.py. The
demo model's file has 4-bit matrices and 8-bit embeddings: kept in these codes, its answers are those of fp32, and the
command fails where they are not.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import subprocess
import sys

import psutil
import torch
from rich.console import Console
from rich.table import Table

from db.model_files import find
from db.settings import Settings
from engine.cache import KVCache
from engine.config import EngineConfig
from engine.models import load_model
from engine.models.model import GreedyModel
from kernels import native
from tests.bench import quality
from tests.bench.kernel_rates import Step, fastest, inputs_of

FORMATS = ("fp32", "int8", "int8_weight_only", "int4_weight_only")
ROWS = (1, 8, 64, 512)
MIB = 1 << 20


def own_bytes() -> int:
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)  # what is free may have been touched by loading alone
    return int(psutil.Process().memory_full_info().uss)


def print_growth(name: str) -> None:
    """In this process: how many bytes a loaded model takes."""
    assert native.available(), native.reason()
    before = own_bytes()
    model = load_model(find("smollm2-135m", Settings()), name)
    print(own_bytes() - before)
    del model


def memory(name: str) -> int:
    code = f"from tests.bench.number_formats import print_growth; print_growth({name!r})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return int(done.stdout)


def milliseconds(name: str, repeats: int) -> list[float]:
    """Of a step of each number of rows."""
    model = load_model(find("smollm2-135m", Settings()), name)
    assert isinstance(model, GreedyModel)
    found = []
    for rows in ROWS:
        inputs = inputs_of(Step(str(rows), rows, 1, 64, 1))
        config = EngineConfig(dtype=name, num_blocks=inputs.block_tables.numel())
        cache = KVCache.fit(model.config, config)

        def step() -> None:
            model.largest(model.forward(inputs, cache), None, None)  # noqa: B023 - called before the next rows

        with torch.inference_mode():
            step()
            found.append(1e3 * fastest(step, repeats))
    return found


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--formats", nargs="+", default=FORMATS, choices=FORMATS)
    parser.add_argument("--prompts", type=int, default=8)
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    torch.set_num_threads(1)
    table = Table("weights", "MiB", *(f"{rows} rows, ms" for rows in ROWS), title="number formats, one thread")
    for name in options.formats:
        times = milliseconds(name, options.repeats)
        table.add_row(name, f"{memory(name) / MIB:.0f}", *(f"{each:.1f}" for each in times))
    caches = {"int8": "int8"}
    qualities = quality.measure([f"{name}/{caches.get(name, 'fp32')}" for name in options.formats], options.prompts)
    console = Console(width=120)
    console.print(table)
    console.print(quality.table(qualities))
    off = [name for name, each in qualities.items() if "weight_only" in name and abs(each.divergence) > 0]
    print(f"divergence of weights alone from fp32: {'none' if not off else ', '.join(off)}")
    return 1 if off else 0


if __name__ == "__main__":
    sys.exit(main())
