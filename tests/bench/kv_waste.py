"""What the paged cache wastes and how much memory an engine takes, on w2 (summarising) with the demo model.

    python -m tests.bench.kv_waste [--dtype int8] [--sizes 16 32 64]

Waste: of the token slots in the blocks that sequences hold, the share that holds no token, averaged over the steps. A
shared block counts once. Each block size runs in a process of its own; peak memory is that process's, as the kernel
counted it (VmHWM), the model's loading included. Exits 1 when the default block size wastes 4 % or more, or its process
peaks at 1.2 GB or more. Prints both last.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path

from db.model_files import find
from db.settings import Settings
from engine import Engine, EngineConfig, load
from engine.sequence import Sequence
from tests.bench.speculation import requests
from tests.bench.workloads import load as load_workload
from tests.bench.workloads import salted

MOST_WASTE = 0.04
MOST_BYTES = 1.2e9
DEFAULT = EngineConfig().block_size


def waste(sequences: tuple[Sequence, ...], block_size: int) -> tuple[int, int]:
    """Slots without a token, and all slots, of the blocks that these sequences hold between two steps."""
    filled: dict[int, int] = {}
    for sequence in sequences:
        for place, block in enumerate(sequence.blocks):
            own = min(max(sequence.computed - place * block_size, 0), block_size)
            filled[block] = max(filled.get(block, 0), own)
    return len(filled) * block_size - sum(filled.values()), len(filled) * block_size


def run(dtype: str, block_size: int) -> dict[str, float]:
    """In this process: w2 through the engine, looked at after every step."""
    config = EngineConfig(dtype=dtype, block_size=block_size, max_sequences=64, cache_bytes=512 << 20)
    engine = load(find("smollm2-135m", Settings()), config).engine
    items = salted(load_workload("w2"), 90)
    start = time.perf_counter()
    for request in requests(items, "w2"):
        engine.add(request)
    shares = []
    while not engine.idle:
        engine.step()
        empty, slots = waste(running(engine), block_size)
        if slots:
            shares.append(empty / slots)
    seconds = time.perf_counter() - start
    status = Path("/proc/self/status").read_text().splitlines()
    peak = next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmHWM"))
    return {"waste": sum(shares) / len(shares), "peak": peak, "rows_per_second": len(items) / seconds}


def running(engine: Engine) -> tuple[Sequence, ...]:
    return engine._scheduler.running


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--dtype", default="int8")
    parser.add_argument("--sizes", nargs="+", type=int, default=[DEFAULT])
    parser.add_argument("--here", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.here is not None:
        print(json.dumps(run(options.dtype, options.here)))
        return 0
    found = {}
    for size in dict.fromkeys([*options.sizes, DEFAULT]):
        command = [sys.executable, "-m", "tests.bench.kv_waste", "--dtype", options.dtype, "--here", str(size)]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        found[size] = json.loads(done.stdout.splitlines()[-1])
        print(
            f"blocks of {size}: waste {found[size]['waste']:.2%}, peak {found[size]['peak'] / 1e9:.2f} GB, "
            f"{found[size]['rows_per_second']:.2f} rows/s"
        )
    own = found[DEFAULT]
    print(f"w2, {options.dtype}: {own['waste']:.2%} of allocated KV wasted, peak memory {own['peak'] / 1e9:.2f} GB")
    return int(own["waste"] >= MOST_WASTE or own["peak"] >= MOST_BYTES)


if __name__ == "__main__":
    sys.exit(main())
