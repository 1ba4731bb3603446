"""What the simulator says of the benchmark workloads, beside what the engine does; and how fast it simulates.

    python -m tests.bench.simulator [--dtype int8] [--workloads w1 w2 w3] [--repetitions 2] [--rows 1000000]
        [--processor-time]

The costs of steps are measured on requests of random tokens, before and after the workloads, by an engine without
speculation; how many guessed tokens are accepted, by a run of each workload on other prompts (another salt). Then each
workload runs on the engine, and in the simulator with the same prompts and the lengths of the answers that came out:
scheduling, the prefix cache, what steps compute and what they cost are the simulator's. Last, so many rows like those
of w1 are simulated. Prints one line per workload and the errors last; exits 1 when the throughput of any is 15 % or
more off, in the median of the repetitions, or a million rows would take 3 minutes or more. With --processor-time,
seconds are those of one thread's processor, which others on the machine take less from.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from db.model_files import find
from db.settings import Settings
from engine import EngineConfig, EngineStats, LoadedModel, Output, load
from engine.simulation import Drafts, FittedCost, SimulatedRequest, simulate
from engine.simulation.measure import MeasuredSteps, measure_steps
from tests.bench.speculation import requests
from tests.bench.workloads import NAMES, Item, salted
from tests.bench.workloads import load as load_workload

SALT = 600
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
    before: EngineStats
    after: EngineStats

    @property
    def drafts(self) -> Drafts:
        """Per step of an answer but its first: what is guessed with the prompt is computed with it."""
        proposed, accepted = (
            sum(getattr(each, name) for each in self.after.drafts)
            - sum(getattr(each, name) for each in self.before.drafts)
            for name in ("proposed", "accepted")
        )
        written = sum(output.num_output_tokens for output in self.outputs.values())
        steps = max(written - accepted - len(self.outputs), 1)
        return Drafts(proposed / steps, accepted / steps)


def on_engine(model: LoadedModel, name: str, salt: int, clock: Callable[[], float]) -> Run:
    items = salted(load_workload(name), salt)
    before = model.engine.stats()
    wanted, began = requests(items, (name, salt)), clock()
    outputs = {output.id: output for output in model.engine.generate(wanted)}
    return Run(items, outputs, clock() - began, before, model.engine.stats())


def simulated(real: Run, drafts: Drafts, config: EngineConfig, cost: FittedCost) -> tuple[float, str]:
    """Seconds, and what was counted beside what the engine counted."""
    wanted = [
        SimulatedRequest(item.prompt_ids, real.outputs[number].num_output_tokens, drafts=drafts)
        for number, item in enumerate(real.items)
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
    parser.add_argument("--repetitions", type=int, default=2)
    parser.add_argument("--rows", type=int, default=MILLION)
    parser.add_argument("--processor-time", action="store_true")
    options = parser.parse_args()
    config = EngineConfig(dtype=options.dtype, num_threads=1 if options.processor_time else None)
    clock = time.process_time if options.processor_time else time.perf_counter
    plain_config = replace(config, speculation=False)
    path = find("smollm2-135m", Settings())
    plain, guessing = load(path, plain_config), load(path, config)
    drafts = {name: on_engine(guessing, name, SALT, clock).drafts for name in options.workloads}
    steps: MeasuredSteps = measure_steps(plain.engine, plain_config, seed=1, clock=clock)
    runs = [
        (name, on_engine(guessing, name, SALT + 1 + repetition, clock))
        for repetition in range(options.repetitions)
        for name in options.workloads
    ]
    cost = steps.plus(measure_steps(plain.engine, plain_config, seed=2, clock=clock)).cost()
    print(f"prices of {len(steps.works) * 2} measured steps, in ms: step {1000 * cost.prices[0]:.2f}", end=", ")
    print(f"token {1000 * cost.prices[1]:.3f}; a step is {cost.error:.0%} off, in the mean")
    errors: dict[str, list[float]] = {name: [] for name in options.workloads}
    for name, real in runs:
        seconds, counted = simulated(real, drafts[name], config, cost)
        errors[name].append(real.seconds / seconds - 1)
        rates = f"{len(real.items) / seconds:.2f} rows/s simulated, {len(real.items) / real.seconds:.2f} on the engine"
        print(f"{name}: {rates} ({errors[name][-1]:+.1%}); {counted}")
    began = time.process_time()
    done = simulate(like_w1(options.rows), replace(config, num_blocks=runs[0][1].after.blocks_total), cost)
    million = (time.process_time() - began) * MILLION / options.rows
    print(f"{done.rows:,} rows like w1's: {done.seconds / 3600:.1f} h of the engine's time", end=", ")
    print(f"simulated at {million:.0f} s of one processor per million")
    found = {name: statistics.median(each) for name, each in errors.items()}
    print("throughput: " + ", ".join(f"{name} {error:+.1%}" for name, error in found.items()) + f"; {million:.0f} s")
    return int(any(abs(error) >= MOST_ERROR for error in found.values()) or million >= MOST_SECONDS)


if __name__ == "__main__":
    sys.exit(main())
