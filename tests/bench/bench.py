"""Nightmill beside other engines on the same prompts, interleaved in one run.

    python -m tests.bench.bench [--workloads w1 w2 w3] [--repetitions 3] [--contenders nightmill-int8 openvino-int8 …]

A contender takes part when its environment is there: a folder of the virtual environment's name under --peers (or
NIGHTMILL_PEERS), with its model. docs/performance.md says how each is made. Every repetition runs all contenders one
after the other on freshly salted prompts, in an order that turns from one repetition to the next; a ratio is taken
inside a repetition and the median over repetitions is printed, with the least and the largest. What a number format
costs in quality stands beside: how far an output goes before it differs from that of our fp32, and the perplexity of
ours (quality.py). Writes one JSON file, and docs/throughput.svg where all contenders took part.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from db.model_files import find
from db.settings import Settings
from tests.bench import chart, quality
from tests.bench.processes import Contender, Measured
from tests.bench.workloads import NAMES

RESULTS = Path(__file__).parent / "results"
PEERS = Path(os.environ.get("NIGHTMILL_PEERS", Path.home() / ".cache/nightmill-peers"))
MAX_OTHERS = 0.25
QUALITY_PROMPTS = 24  # texts that perplexity is measured on
FEW = 8  # prompts of a workload for a contender that takes them one by one


@dataclass(frozen=True, slots=True)
class Entry:
    """What takes part. `model` None is the demo model; `limit` takes the first prompts alone."""

    kind: str
    environment: str | None
    model: str | None
    options: tuple[str, ...] = ()
    limit: int | None = None


ENTRIES = {
    "nightmill-fp32": Entry("nightmill", None, None, ("--dtype", "fp32", "--cache-bytes", str(2 << 30))),
    "nightmill-int8": Entry("nightmill", None, None, ("--dtype", "int8")),
    "openvino-int8": Entry("openvino", "openvino", "smollm2-ov-int8"),
    "vllm-fp32": Entry("vllm", "vllm", "smollm2-hf"),
    "transformers-fp32": Entry("transformers", "transformers", "smollm2-hf", limit=FEW),
}
# ours, theirs, workload -> least ratio of rows per second
BARS = {
    ("nightmill-int8", "openvino-int8", "w1"): 2.5,
    ("nightmill-int8", "openvino-int8", "w2"): 2.0,
    ("nightmill-int8", "openvino-int8", "w3"): 3.0,
    ("nightmill-fp32", "vllm-fp32", "w1"): 1.3,
    ("nightmill-fp32", "vllm-fp32", "w2"): 1.3,
    ("nightmill-fp32", "vllm-fp32", "w3"): 1.3,
    ("nightmill-fp32", "transformers-fp32", "w1"): 10.0,
    ("nightmill-fp32", "transformers-fp32", "w2"): 10.0,
}
REFERENCE = "nightmill-fp32"
Runs = dict[tuple[str, str], list[Measured]]  # by contender and workload


def available(name: str, peers: Path) -> bool:
    entry = ENTRIES[name]
    return entry.environment is None or (
        (peers / entry.environment / "bin/python").exists() and (peers / str(entry.model)).exists()
    )


@contextmanager
def contender(name: str, peers: Path) -> Iterator[Contender]:
    entry = ENTRIES[name]
    python = Path(sys.executable) if entry.environment is None else peers / entry.environment / "bin/python"
    model = find("smollm2-135m", Settings()) if entry.model is None else peers / entry.model
    started = Contender(name, python, entry.kind, model, entry.options)
    try:
        yield started
    finally:
        started.close()


def measure(
    names: list[str], workloads: list[str], repetitions: int, peers: Path, console: Console
) -> tuple[Runs, dict[str, int]]:
    """All runs, and each contender's peak memory in bytes."""
    runs: Runs = {}
    with ExitStack() as stack:
        started = {name: stack.enter_context(contender(name, peers)) for name in names}
        for workload in workloads:
            for repetition in range(repetitions):
                turned = names[repetition % len(names) :] + names[: repetition % len(names)]
                for name in turned:
                    run = started[name].run(workload, repetition + 1, ENTRIES[name].limit)
                    runs.setdefault((name, workload), []).append(run)
                    note = f" (others took {run.others:.2f} processors)" if run.others > MAX_OTHERS else ""
                    console.print(f"{workload} {name}: {run.rows_per_second:.2f} rows/s{note}", highlight=False)
        return runs, {name: each.peak_bytes for name, each in started.items()}


def ratios(runs: Runs, ours: str, theirs: str, workload: str) -> list[float]:
    pairs = zip(runs[ours, workload], runs[theirs, workload], strict=True)
    return [mine.rows_per_second / other.rows_per_second for mine, other in pairs]


def agreement(runs: Runs, name: str, workload: str) -> float | None:
    """Of outputs with those of our fp32, over all repetitions; None where that did not run."""
    reference = runs.get((REFERENCE, workload))
    if reference is None:
        return None
    pairs = zip(runs[name, workload], reference, strict=True)
    return statistics.mean(own.agreement(expected) for own, expected in pairs)


def report(runs: Runs, peaks: dict[str, int], console: Console) -> bool:
    """Print the tables; whether every bar that could be checked was reached."""
    table = Table(
        "workload", "contender", "rows/s", "tokens/s", "valid", "as fp32", "others", "peak MiB", title="medians"
    )
    for (name, workload), each in sorted(runs.items(), key=lambda item: item[0][1]):
        rate = statistics.median(run.rows_per_second for run in each)
        tokens = statistics.median(run.tokens / run.seconds for run in each)
        shown = f"{each[-1].valid}/{each[-1].rows}" if workload == "w3" else ""
        others = max(run.others for run in each)
        peak = f"{peaks[name] / 2**20:.0f}"
        same = agreement(runs, name, workload)
        shown_same = f"{same:.3f}" if same is not None else ""
        table.add_row(workload, name, f"{rate:.2f}", f"{tokens:.0f}", shown, shown_same, f"{others:.2f}", peak)
    console.print(table)
    reached = True
    for (ours, theirs, workload), bar in BARS.items():
        if (ours, workload) in runs and (theirs, workload) in runs:
            found = ratios(runs, ours, theirs, workload)
            median = statistics.median(found)
            reached &= median >= bar
            verdict = "reached" if median >= bar else "NOT reached"
            spread = f"{min(found):.2f} to {max(found):.2f}"
            console.print(
                f"{workload}: {ours} / {theirs} = {median:.2f} ({spread}), bar {bar:.1f}: {verdict}", highlight=False
            )
    return reached


def save(runs: Runs, peaks: dict[str, int]) -> Path:
    RESULTS.mkdir(exist_ok=True)
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True).stdout.strip()
    path = RESULTS / f"cpu-{time.strftime('%Y%m%d-%H%M')}.json"
    record = {
        "date": time.strftime("%Y-%m-%d %H:%M"),
        "commit": commit,
        "machine": {"processors": os.cpu_count(), "kind": _processor(), "python": platform.python_version()},
        "runs": [
            {
                "contender": name,
                "workload": workload,
                **{key: value for key, value in asdict(run).items() if key != "ids"},
            }
            for (name, workload), each in runs.items()
            for run in each
        ],
        "peak_bytes": peaks,
    }
    path.write_text(json.dumps(record, indent=1) + "\n")
    return path


def _processor() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--workloads", nargs="+", choices=NAMES, default=list(NAMES))
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--contenders", nargs="+", choices=ENTRIES, default=list(ENTRIES))
    parser.add_argument("--peers", type=Path, default=PEERS)
    options = parser.parse_args()
    console = Console(soft_wrap=True)
    names = [name for name in options.contenders if available(name, options.peers)]
    for name in set(options.contenders) - set(names):
        console.print(f"{name} is left out: no environment in {options.peers}", highlight=False)
    runs, peaks = measure(names, options.workloads, options.repetitions, options.peers, console)
    written = save(runs, peaks)
    console.print(f"written: {written}", highlight=False)
    if set(names) == set(ENTRIES):
        chart.draw(json.loads(written.read_text()), chart.PICTURE)
    console.print(quality.table(quality.measure(["int8/int8"], QUALITY_PROMPTS)))
    return 0 if report(runs, peaks, console) else 1


if __name__ == "__main__":
    sys.exit(main())
