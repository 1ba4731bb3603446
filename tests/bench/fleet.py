"""How far the simulated fleet's rates are off from engines that are simulated step by step.

    python -m tests.bench.fleet

Three workers, two tenants, four jobs of different lengths, one of which comes late; twice: with engines of 16 sequences
and rows of 40 tokens and more, and with an H100 that computes an 8B model, 256 sequences at a time. The ledger is the
same; each engine is once a matter of rates (engine.simulation.shared) and once the simulator itself, which every shard
gives its rows in turn. Prints both ends of each job, and the largest differences; exits 1 where one is 10 % or more of
the time from the first submission to that end.
"""

from __future__ import annotations

import itertools
import math
import sys
import time
from collections import deque
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from db.settings import Settings
from engine.config import EngineConfig
from engine.simulation import Architecture, DeviceProfile, FittedCost, RooflineCost, SimulatedRequest, Simulator
from engine.simulation.costs import StepCost
from engine.simulation.lengths import Lengths
from engine.simulation.shared import Pace, Profile, SharedEngine
from worker.fleet import Fleet
from worker.fleet_jobs import FleetCourse, FleetJob

MOST_ERROR = 0.1
WORKERS = 3


@dataclass(slots=True)
class _Shard:
    rows: Iterator[SimulatedRequest]
    left: int  # that have not ended
    key: Hashable


@dataclass(slots=True)
class SteppedEngine:
    """A worker.fleet.Engine whose every step is simulated. An event is the end of a step."""

    pace: Pace
    simulator: Simulator
    numbers: Iterator[int] = field(default_factory=lambda: itertools.count(step=1_000_000))
    busy: float = 0.0
    now: float = 0.0
    _feeding: deque[_Shard] = field(default_factory=deque)
    _owners: dict[int, _Shard] = field(default_factory=dict)
    _step: tuple[float, list[int]] | None = None  # that is under way: its end, and the rows that end with it

    def add(self, key: Hashable, kind: int, rows: int) -> None:
        first = next(self.numbers)
        self._feeding.append(_Shard(self.pace.rows([kind], rows, seed=first + kind, first=first), rows, key))

    @property
    def next_event(self) -> float:
        if self._step is None and (self._feeding or not self.simulator.idle):
            self._begin()
        return self._step[0] if self._step is not None else math.inf

    def advance(self, to: float) -> list[Hashable]:
        self.now = to
        if self._step is None or self._step[0] > to:
            return []
        ended = []
        for number in self._step[1]:
            shard = self._owners.pop(number)
            shard.left -= 1
            if not shard.left:
                ended.append(shard.key)
        self._step = None
        return ended

    def _begin(self) -> None:
        while self._feeding and self.simulator.has_room:
            shard = self._feeding.popleft()
            request = next(shard.rows, None)
            if request is not None:
                self._feeding.append(shard)
                number = -request.prompt[-1] // 2 - 1  # what of_lengths made its own tokens of
                self._owners[number] = shard
                self.simulator.add(number, request)
        before = self.simulator.seconds
        numbers = self.simulator.step()
        self.busy += self.simulator.seconds - before
        self._step = (self.now + self.simulator.seconds - before, numbers)


def profile(prompt: str, output: str, shared: int = 0) -> Profile:
    return Profile(Lengths.parse(prompt, "prompt"), Lengths.parse(output, "output"), shared)


@dataclass(frozen=True, slots=True)
class Case:
    name: str
    config: EngineConfig
    cost: StepCost
    profiles: Sequence[Profile]
    jobs: Sequence[FleetJob]


def cases() -> Iterator[Case]:
    profiles = [profile("0:20,50:60,100:200", "0:4,100:20", 10), profile("30", "0:10,50:30,100:120")]
    small = EngineConfig(block_size=16, num_blocks=400, max_sequences=16, token_budget=128, max_model_len=400)
    prices = FittedCost((0.004, 0.001, 0.0, 0.00001, 0.0, 0.0005), 0.0)
    yield Case("small", small, prices, profiles, jobs(rows=4000, shard_rows=200, late=150.0))
    cost = RooflineCost(Architecture.named("llama-3.1-8b"), DeviceProfile.named("h100"), efficiency=0.6)
    large = EngineConfig(max_sequences=256, token_budget=4096)
    large = replace(large, num_blocks=cost.num_blocks(large))
    profiles = [profile("0:100,50:400,100:1500", "0:20,100:80", 60), profile("200", "0:50,50:150,100:600")]
    yield Case("h100", large, cost, profiles, jobs(rows=20_000, shard_rows=1000, late=60.0))


def jobs(rows: int, shard_rows: int, late: float) -> list[FleetJob]:
    return [
        FleetJob("labels", "a", rows, shard_rows),
        FleetJob("answers", "a", rows // 2, shard_rows, kind=1),
        FleetJob("others", "b", rows, shard_rows),
        FleetJob("late", "b", rows // 10, shard_rows, kind=1, at=late),
    ]


def course(case: Case, *, stepped: bool) -> FleetCourse:
    pace = Pace(case.profiles, case.config, case.cost)
    made: Callable[[], SharedEngine | SteppedEngine] = lambda: SharedEngine(pace)  # noqa: E731
    if stepped:
        made = lambda: SteppedEngine(pace, Simulator(case.config, case.cost, jumps=False))  # noqa: E731
    return Fleet(case.jobs, WORKERS, made, Settings()).run()


def main() -> int:
    worst = 0.0
    for case in cases():
        found, took = [], []
        for stepped in (False, True):
            began = time.process_time()
            found.append(course(case, stepped=stepped))
            took.append(time.process_time() - began)
        print(f"{case.name}: simulated in {took[0]:.1f} s with rates, {took[1]:.1f} s step by step")
        for rates, steps in zip(found[0].jobs, found[1].jobs, strict=True):
            error = (rates.ended - steps.ended) / steps.ended
            worst = max(worst, abs(error))
            print(f"  {rates.name}: ends after {rates.ended:.0f} s with rates, {steps.ended:.0f} s ({error:+.1%})")
    print(f"largest difference {worst:.1%}")
    return int(worst >= MOST_ERROR)


if __name__ == "__main__":
    sys.exit(main())
