"""What the simulator says of the benchmark workloads, beside what the engine does; and how fast it simulates.

    python -m tests.bench.simulator [--dtype int8] [--workloads w1 w2 w3] [--repetitions 3] [--rows 1000000]
        [--processor-time]

The costs of steps are measured on requests of random tokens, before and after each workload, by an engine without
speculation; how many guessed tokens are verified and accepted in each step of an answer, by a run of each workload on
other prompts (another salt). Then each workload runs on the engine, and in the simulator with the same prompts and the
lengths of the answers that came out, each row guessing as one of the other run's of about its length did: scheduling,
the prefix cache, what steps compute and what they cost are the simulator's. Last, so many rows like those of w1 are
simulated. Prints one line per workload and the errors last; exits 1 when the throughput of any is 15 % or more off, in
the median of the repetitions, or a million rows would take 3 minutes or more. With --processor-time, seconds are those
of one thread's processor, which others on the machine take less from.
"""

from __future__ import annotations

import argparse
import itertools
import random
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from collections.abc import Sequence as Items
from dataclasses import dataclass, replace
from unittest.mock import patch

from db.model_files import find
from db.settings import Settings
from engine import EngineConfig, EngineStats, LoadedModel, Output, load
from engine.batch import Sampled, Slice
from engine.settling import Settling
from engine.simulation import Drafts, FittedCost, SimulatedRequest, simulate
from engine.simulation.measure import measure_steps
from tests.bench.speculation import requests
from tests.bench.workloads import NAMES, Item, salted
from tests.bench.workloads import load as load_workload

SALT = 600
STRATA = 8
MOST_ERROR = 0.15
MOST_SECONDS = 180.0
MILLION = 1_000_000
W1_SHARED = 84  # tokens that the prompts of w1 begin with alike


@dataclass(frozen=True, slots=True)
class Run:
    """A workload on the engine."""

    items: list[Item]
    outputs: dict[object, Output]
    seconds: float
    drafts: dict[object, Drafts]  # of each row
    before: EngineStats
    after: EngineStats

    def drafts_for(self, lengths: Items[int], dice: random.Random) -> list[Drafts]:
        """For answers of these lengths, each one's from the rows here whose lengths have about the same rank."""
        own = sorted(self.outputs, key=lambda number: self.outputs[number].num_output_tokens)
        size = -(-len(own) // STRATA)
        strata = [own[start : start + size] for start in range(0, len(own), size)]
        found: dict[int, Drafts] = {}
        for rank, place in enumerate(sorted(range(len(lengths)), key=lambda place: lengths[place])):
            found[place] = self.drafts[dice.choice(strata[rank * len(strata) // len(lengths)])]
        return [found[place] for place in range(len(lengths))]


def on_engine(model: LoadedModel, name: str, salt: int, clock: Callable[[], float]) -> Run:
    items = salted(load_workload(name), salt)
    before, steps = model.engine.stats(), defaultdict[object, list[tuple[int, int]]](list)
    advance = Settling.advance

    def noted(settling: Settling, piece: Slice, num_logits: int, sampled: Sampled) -> bool:
        if sampled.tokens:
            steps[piece.sequence.request.id].append((num_logits - 1, len(sampled.tokens) - 1))
        return advance(settling, piece, num_logits, sampled)

    wanted, began = requests(items, (name, salt)), clock()
    with patch.object(Settling, "advance", noted):
        outputs = {output.id: output for output in model.engine.generate(wanted)}
    seconds = clock() - began
    drafts = {number: Drafts(tuple(each)) for number, each in steps.items()}
    return Run(items, outputs, seconds, drafts, before, model.engine.stats())


def simulated(real: Run, other: Run, dice: random.Random, config: EngineConfig, cost: FittedCost) -> tuple[float, str]:
    """Seconds, and what was counted beside what the engine counted."""
    lengths = [real.outputs[number].num_output_tokens for number in range(len(real.items))]
    wanted = [
        SimulatedRequest(item.prompt_ids, length, drafts=drafts)
        for item, length, drafts in zip(real.items, lengths, other.drafts_for(lengths, dice), strict=True)
    ]
    done = simulate(wanted, replace(config, num_blocks=real.after.blocks_total), cost)
    steps = real.after.steps - real.before.steps
    computed, cached = (
        getattr(real.after, name) - getattr(real.before, name) for name in ("computed_tokens", "cached_tokens")
    )
    counted = f"steps {done.steps} / {steps}, computed {done.computed_tokens} / {computed}"
    return done.seconds, f"{counted}, cached {done.cached_tokens} / {cached}"


def like_w1(rows: int) -> Iterator[SimulatedRequest]:
    """Rows with the lengths of w1's prompts and the most that their answers may have; all have one beginning."""
    lengths = [(len(item.prompt_ids), item.max_tokens) for item in load_workload("w1")]
    for number, (prompt, output) in enumerate(itertools.islice(itertools.cycle(lengths), rows)):
        yield SimulatedRequest.of_lengths(number, prompt, output, shared=W1_SHARED)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--dtype", default="int8")
    parser.add_argument("--workloads", nargs="+", choices=NAMES, default=list(NAMES))
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--rows", type=int, default=MILLION)
    parser.add_argument("--processor-time", action="store_true")
    options = parser.parse_args()
    config = EngineConfig(dtype=options.dtype, num_threads=1 if options.processor_time else None)
    clock = time.process_time if options.processor_time else time.perf_counter
    plain_config = replace(config, speculation=False)
    path = find("smollm2-135m", Settings())
    plain, guessing = load(path, plain_config), load(path, config)
    others, dice = {name: on_engine(guessing, name, SALT, clock) for name in options.workloads}, random.Random(SALT)
    errors: dict[str, list[float]] = {name: [] for name in options.workloads}
    seeds = itertools.count(1)
    steps = measure_steps(plain.engine, plain_config, seed=next(seeds), clock=clock)
    for repetition, name in itertools.product(range(options.repetitions), options.workloads):
        real = on_engine(guessing, name, SALT + 1 + repetition, clock)
        before, steps = steps, measure_steps(plain.engine, plain_config, seed=next(seeds), clock=clock)
        cost = before.plus(steps).cost()
        seconds, counted = simulated(real, others[name], dice, config, cost)
        errors[name].append(real.seconds / seconds - 1)
        rates = f"{len(real.items) / seconds:.2f} rows/s simulated, {len(real.items) / real.seconds:.2f} on the engine"
        prices = (
            f"a step is {1000 * cost.prices[0]:.1f} ms and {1000 * cost.prices[1]:.3f} per token, ±{cost.error:.0%}"
        )
        print(f"{name}: {rates} ({errors[name][-1]:+.1%}); {counted}; {prices}", flush=True)
    began = time.process_time()
    done = simulate(
        like_w1(options.rows), replace(config, num_blocks=others[options.workloads[0]].after.blocks_total), cost
    )
    million = (time.process_time() - began) * MILLION / options.rows
    print(f"{done.rows:,} rows like w1's: {done.seconds / 3600:.1f} h of the engine's time", end=", ")
    print(f"simulated at {million:.0f} s of one processor per million")
    found = {name: statistics.median(each) for name, each in errors.items()}
    print("throughput: " + ", ".join(f"{name} {error:+.1%}" for name, error in found.items()) + f"; {million:.0f} s")
    return int(any(abs(error) >= MOST_ERROR for error in found.values()) or million >= MOST_SECONDS)


if __name__ == "__main__":
    sys.exit(main())
