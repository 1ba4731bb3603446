"""What the engine's host work costs beside the model, with the demo model and with a model of no cost.

    python -m tests.bench.host [--dtype int8] [--threads N]

1. Host share: the wall time outside the model (scheduling, inputs, masks, choosing tokens, settling, drafting,
   detokenising) at 64 sequences, on w1, w2, w3 and on 64 short prompts that are written on for 64 tokens: nothing but
   decoding, where it weighs the most.
2. The scheduler at 1,024 sequences: milliseconds per step of `schedule`, with a model that computes nothing; the median
   over steps in which every sequence decodes a token.

Exits 1 when a share is 5 % or more or the scheduler takes 2 ms or more. Prints both last.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from db.model_files import find
from db.settings import Settings
from engine import Engine, EngineConfig, Request, SamplingParams, load
from engine.cache import KVCache
from engine.clock import PARTS
from engine.inputs import Inputs
from tests.bench.speculation import requests
from tests.bench.workloads import load as load_workload
from tests.bench.workloads import salted
from tests.engine.fakes import config
from worker.bench import Measured, measure

MOST_SHARE = 0.05
MOST_MS = 2.0
SEQUENCES = 64
MANY = 1024
STEPS = 100


class NoModel:
    """Logits out of a table, at no cost."""

    def __init__(self, vocab_size: int) -> None:
        self.config = config(vocab_size)
        self._table = torch.randn(MANY, vocab_size)

    def forward(self, inputs: Inputs, cache: KVCache) -> Tensor:
        return inputs.logit_rows

    def logits(self, hidden: Tensor) -> Tensor:
        return self._table[: len(hidden)].clone()


def decoding(num_sequences: int, max_tokens: int, vocab: int) -> list[Request]:
    """Short prompts that share nothing."""
    dice = random.Random(num_sequences)
    sampling = SamplingParams(max_tokens=max_tokens, ignore_eos=True)
    return [
        Request(row, tuple(dice.randrange(vocab) for _ in range(16)), sampling, group="decoding")
        for row in range(num_sequences)
    ]


def shares(dtype: str, threads: int | None, console: Console) -> list[float]:
    settings = EngineConfig(dtype=dtype, max_sequences=SEQUENCES, cache_bytes=512 << 20, num_threads=threads)
    model = load(find("smollm2-135m", Settings()), settings)
    measure(model, decoding(4, 4, 40_000))  # compiles, and lets the drafters measure what a step costs
    table = Table("workload", "steps", "ms per step", *PARTS, "tokenise", "detokenise", "other", "host share")
    found = []
    for name in ("w1", "w2", "w3", "decoding"):
        wanted = workload(name)
        for format in {request.format for request in wanted if request.format is not None}:
            model.grammars.check(format)  # as a job's split does, before its first row
        measured = measure(model, wanted)
        found.append(measured.host_share)
        table.add_row(name, *row(measured))
    console.print(table)
    return found


def workload(name: str) -> list[Request]:
    if name == "decoding":
        return decoding(SEQUENCES, 64, 40_000)
    return requests(salted(load_workload(name), 70), name)


def row(measured: Measured) -> list[str]:
    times = [1000 * measured.parts[name] / measured.steps for name in (*PARTS, "tokenise", "detokenise", "other")]
    whole = 1000 * measured.seconds / measured.steps
    return [str(measured.steps), f"{whole:.1f}", *(f"{time:.2f}" for time in times), f"{measured.host_share:.2%}"]


def scheduler_ms(console: Console) -> float:
    """Of a step of 1,024 sequences; prints the other parts too."""
    sizes = EngineConfig(max_sequences=MANY, token_budget=16 * MANY, num_blocks=12 * MANY, num_threads=1)
    engine = Engine(NoModel(128), sizes, eos_token_ids=frozenset())
    for request in decoding(MANY, STEPS + 2, 128):
        engine.add(request)
    engine.step()
    steps = []
    for _ in range(STEPS):
        before = dict(engine.profile())
        engine.step()
        steps.append({name: 1000 * (engine.profile()[name] - before[name]) for name in PARTS})
    medians = {name: statistics.median(step[name] for step in steps) for name in PARTS}
    listed = ", ".join(f"{name} {value:.2f}" for name, value in medians.items())
    console.print(f"{MANY} sequences without a model, ms per step: {listed}", highlight=False)
    return medians["schedule"]


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--dtype", default="int8")
    parser.add_argument("--threads", type=int)
    options = parser.parse_args()
    console = Console(width=200)
    most = max(shares(options.dtype, options.threads, console))
    scheduler = scheduler_ms(console)
    print(f"host share at most {most:.2%} at {SEQUENCES} sequences; scheduler {scheduler:.2f} ms at {MANY} sequences")
    return int(most >= MOST_SHARE or scheduler >= MOST_MS)


if __name__ == "__main__":
    sys.exit(main())
