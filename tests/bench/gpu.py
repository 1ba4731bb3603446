"""Nine minutes on an H200: everything that only a GPU can say, the most valuable first.

    python -m tests.bench.gpu [--out FOLDER] [--stages NAME …]     on a machine with a GPU
    python -m tests.bench.gpu --reduced   without one, in the interpreter: its numbers mean nothing

Every stage is a process with a limit of its own, so that a crash costs that stage alone; its lines are appended to one
JSON-lines file as they come. Needs no network: weights are random. `make bench-report` makes tables of the files.
Exits with an error when a stage failed or a line did not pass.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
RESULTS = Path(__file__).parent / "results"
# Stage -> its limit in seconds; together 540.
STAGES = {
    "ceilings": 25,
    "correctness": 45,
    "bandwidth": 45,
    "invariance": 20,
    "engine_8b": 115,
    "engine_1b": 50,
    "baselines": 105,
    "verify_table": 35,
    "oracle": 30,
    "structured": 30,
    "formats": 40,
}
REDUCED_LIMIT = 900
# Split-K, which needs the workspace, makes a product's bits depend on its number of rows.
SPECIAL = {"invariance": {"CUBLAS_WORKSPACE_CONFIG": ":16:8", "CUBLASLT_WORKSPACE_SIZE": "1"}}


def stage_of(name: str) -> Callable[[Any], Iterator[dict[str, Any]]]:
    from tests.bench.gpu_stages import kernels, speculation, throughput

    for module in (kernels, throughput, speculation):
        found: Callable[[Any], Iterator[dict[str, Any]]] | None = getattr(module, name, None)
        if found is not None:
            return found
    raise ValueError(name)


def run_stage(name: str, *, reduced: bool) -> None:
    """One stage, in this process; a JSON line for each result."""
    import torch

    if reduced:
        from tests.gpu.interpreter import install

        install()
        torch.set_num_threads(1)
    from tests.bench.gpu_stages.shapes import Place

    torch.manual_seed(0)
    for line in stage_of(name)(Place(reduced)):
        print(json.dumps({"stage": name, **line}), flush=True)


def machine() -> dict[str, Any]:
    """What the results were made on and with."""
    import torch
    import triton

    made: dict[str, Any] = {"torch": torch.__version__, "triton": triton.__version__, "time": time.strftime("%F %T")}
    made["device"] = torch.cuda.get_device_name() if torch.cuda.is_available() else "none: the interpreter"
    done = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    return made | {"commit": done.stdout.strip() or "unknown"}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--reduced", action="store_true", help="tiny shapes in the interpreter")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--stages", nargs="+", choices=STAGES, default=list(STAGES))
    parser.add_argument("--stage", choices=STAGES, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.stage:
        run_stage(options.stage, reduced=options.reduced)
        return 0
    options.out.mkdir(parents=True, exist_ok=True)
    about = machine()
    if not options.reduced and about["device"].startswith("none"):
        parser.error("there is no GPU; --reduced runs without one")
    path = options.out / f"gpu-{'reduced' if options.reduced else time.strftime('%Y%m%d-%H%M%S')}.jsonl"
    path.write_text(json.dumps({"stage": "machine", **about}) + "\n")
    environment = os.environ | ({"TRITON_INTERPRET": "1"} if options.reduced else {})
    failed = []
    for name in options.stages:
        command = [sys.executable, "-m", "tests.bench.gpu", "--stage", name, *(["--reduced"] * options.reduced)]
        start = time.perf_counter()
        limit = REDUCED_LIMIT if options.reduced else STAGES[name]
        with path.open("a") as results:
            try:
                code = subprocess.run(
                    command,
                    cwd=ROOT,
                    env=environment | SPECIAL.get(name, {}),
                    stdout=results,
                    timeout=limit,
                    check=False,
                ).returncode
            except subprocess.TimeoutExpired:
                code = -1
            seconds = time.perf_counter() - start
            results.write(json.dumps({"stage": name, "what": "end", "code": code, "seconds": seconds}) + "\n")
        print(f"{name}: {'ended' if code == 0 else f'FAILED ({code})'} after {seconds:.0f} s", flush=True)
        failed += [name] if code else []
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    short = [] if options.reduced else [line for line in lines if line.get("passed") is False]
    print(f"{path}: {len(lines)} lines, {len(failed)} stages failed, {len(short)} results fall short")
    return 1 if failed or short else 0


if __name__ == "__main__":
    sys.exit(main())
