"""Continuous against static batching in the same engine, on outputs of skewed lengths.

    python -m tests.bench.batching [--dtype int8] [--repetitions 3] [--rows 256] [--threads N] [--clock wall|cpu]

Rows write as many tokens as a log-normal draw says (fixed seed), 64 at a time. Continuous: the next row begins as soon
as one ends. Static: groups of 64 in the same order, and the next group begins when the longest row of the last has
ended. Static runs in two ways. "Leaving": a row that has ended is computed no longer, which is the best that a static
batch can do. "Padded": it is computed on until the group ends, as a batch held in one rectangular tensor must be
(transformers' generate); what is written beyond a row's length does not count. Interleaved, on freshly salted prompts;
a ratio is taken inside a repetition and the median counts. Exits 1 when continuous batching is not at least twice as
fast as padded static batching. Prints that ratio last. On a busy machine, `--threads 1 --clock cpu` counts the
processor's time instead of the wall's.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from rich.console import Console
from rich.table import Table

from db.model_files import find
from db.settings import Settings
from engine import Engine, EngineConfig, Request, SamplingParams, load

LEAST_RATIO = 2.0
SEQUENCES = 64
MEDIAN, SIGMA, LONGEST = 24.0, 1.1, 512  # of the log-normal lengths, in tokens
PROMPT = 32
SEED = 11
CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}


@dataclass(frozen=True, slots=True)
class Way:
    name: str
    groups: Callable[[list[Request]], Iterator[list[Request]]]


def rows(count: int, salt: int) -> list[Request]:
    """Prompts of 32 tokens that share nothing; the lengths are the same for every salt."""
    lengths, dice = random.Random(SEED), random.Random(salt)
    made = []
    for row in range(count):
        length = max(1, min(LONGEST, round(MEDIAN * lengths.lognormvariate(0, SIGMA))))
        prompt = tuple(dice.randrange(1000, 40_000) for _ in range(PROMPT))
        made.append(Request(row, prompt, SamplingParams(max_tokens=length, ignore_eos=True)))
    return made


def together(requests: list[Request]) -> Iterator[list[Request]]:
    yield requests


def leaving(requests: list[Request]) -> Iterator[list[Request]]:
    for start in range(0, len(requests), SEQUENCES):
        yield requests[start : start + SEQUENCES]


def padded(requests: list[Request]) -> Iterator[list[Request]]:
    for group in leaving(requests):
        longest = max(request.sampling.max_tokens for request in group)
        yield [replace(each, sampling=replace(each.sampling, max_tokens=longest)) for each in group]


WAYS = (Way("continuous", together), Way("static, leaving", leaving), Way("static, padded", padded))


def seconds(engine: Engine, groups: Iterator[list[Request]], clock: str) -> float:
    now = CLOCKS[clock]
    start = now()
    for group in groups:
        finished = sum(1 for _ in engine.generate(group))
        assert finished == len(group), "a row was lost"
    return now() - start


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--dtype", default="int8")
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--rows", type=int, default=4 * SEQUENCES)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--clock", choices=CLOCKS, default="wall")
    options = parser.parse_args()
    console = Console()
    config = EngineConfig(dtype=options.dtype, max_sequences=SEQUENCES, speculation=False, num_threads=options.threads)
    engine = load(find("smollm2-135m", Settings()), config).engine
    seconds(engine, together(rows(4, salt=0)), options.clock)
    times: dict[str, list[float]] = {way.name: [] for way in WAYS}
    for repetition in range(options.repetitions):
        turned = WAYS[repetition % len(WAYS) :] + WAYS[: repetition % len(WAYS)]
        for place, way in enumerate(turned):
            requests = rows(options.rows, salt=1 + 3 * repetition + place)
            times[way.name].append(seconds(engine, way.groups(requests), options.clock))
    tokens = [request.sampling.max_tokens for request in rows(options.rows, salt=0)]
    console.print(
        f"{options.rows} rows of {min(tokens)} to {max(tokens)} tokens, mean {statistics.mean(tokens):.0f}, "
        f"median {statistics.median(tokens):.0f}; {SEQUENCES} at a time"
    )
    table = Table("way", "written tokens/s", "continuous is faster by (least to largest)")
    ratios = {}
    for way in WAYS:
        found = [own / first for own, first in zip(times[way.name], times["continuous"], strict=True)]
        ratios[way.name] = statistics.median(found)
        rate = sum(tokens) / statistics.median(times[way.name])
        table.add_row(way.name, f"{rate:.0f}", f"{ratios[way.name]:.2f} ({min(found):.2f} to {max(found):.2f})")
    console.print(table)
    ratio = ratios["static, padded"]
    print(
        f"continuous is {ratio:.2f} times as fast as padded, {ratios['static, leaving']:.2f} as leaving static batches"
    )
    return int(ratio < LEAST_RATIO)


if __name__ == "__main__":
    sys.exit(main())
