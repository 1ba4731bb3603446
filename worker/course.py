"""Course: a job's rows through the real scheduler, block pool and prefix cache, at the prices that its sample had."""

from __future__ import annotations

import itertools
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from engine.config import EngineConfig
from engine.request import Request
from engine.simulation import SimulatedRequest, Simulator, StepCost, Work
from worker.frame import RUN_ROWS, Seen, Stratum
from worker.trial import simulate


class Tempo(Protocol):
    """What steps cost, and what becomes of a simulation's seconds: worker.trial.Speed."""

    @property
    def cost(self) -> StepCost: ...
    def seconds(self, simulated: float, answer_tokens: float) -> float: ...


@dataclass(frozen=True, slots=True)
class Asked:
    """A row as it is simulated, and the tokens of all of its answers."""

    requests: tuple[SimulatedRequest, ...]
    num_output: int


@dataclass(frozen=True, slots=True)
class Course:
    """What a simulation came to. `work` and the occupancies are of the rows that were simulated, `seconds` of all."""

    seconds: float
    cached_share: float
    work: Work
    steps: int
    occupancy: float  # mean share of the sequences that may run together
    kv_occupancy: float  # mean share of the cache's blocks in use


def requests_of(
    rows: Sequence[Seen], lengths: Mapping[int, int], further: Mapping[int, Sequence[Request]]
) -> list[Asked]:
    """The rows as simulated requests; by a row's index, `lengths` are the tokens of all its answers and `further` what
    it asks for after its first ones. The simulator does not make those wait for the first ones' answers: among
    many rows that is next to no difference, and the trial was simulated likewise (`Speed.extra`)."""
    found = []
    for row in rows:
        assert row.asking is not None, "only rows that are asked are simulated"
        requests = (*row.asking.requests, *(_own(request, row) for request in further.get(row.index, ())))
        each = max(1, round(lengths[row.index] / len(requests)))
        simulated = tuple(SimulatedRequest(item.prompt, 1 if item.choices else each) for item in requests)
        found.append(Asked(simulated, lengths[row.index]))
    return found


def _own(request: Request, row: Seen) -> Request:
    """Another row's request as this row's: the prefix cache serves of it what all prompts have in common, and no more.
    A made-up token keeps them apart."""
    assert row.asking is not None
    prompt, first = request.prompt, row.asking.requests[0].prompt
    pairs = enumerate(zip(prompt, first, strict=False))
    shared = next((place for place, (one, other) in pairs if one != other), min(len(prompt), len(first)) - 1)
    return replace(request, prompt=(*prompt[:shared], -1 - row.index, *prompt[shared + 1 :]))


def donors_of(strata: Sequence[Stratum], draw: random.Random) -> dict[int, int]:
    """For every row in the strata the computed one that it is taken to answer as: itself where it was computed, else
    one drawn from those of its stratum (a hot deck)."""
    found = {}
    for stratum in strata:
        deck = [row.index for row in stratum.drawn]
        for row in stratum.rows:
            found[row.index] = row.index if row.index in deck else draw.choice(deck)
    return found


def stretched(lengths: dict[int, int], factor: float, most: int) -> dict[int, int]:
    """Every length times `factor`, within what an answer may have."""
    return {index: max(1, min(round(length * factor), most)) for index, length in lengths.items()}


def course_of(
    rows: Sequence[Asked], learnt: Sequence[tuple[int, ...]], num_rows: int, config: EngineConfig, speed: Tempo
) -> Course:
    """`num_rows` rows on one worker, of which `rows` are all, or more, or such as are in the input; before them, the
    prompts `learnt`. Rows beyond those that there are take what these take on average, once the engine is full."""
    if num_rows <= len(rows):
        chosen = [rows[place * len(rows) // num_rows] for place in range(num_rows)]
        return _course(chosen, learnt, config, speed)
    whole = _course(rows, learnt, config, speed)
    half = [row for place, row in enumerate(rows) if place // RUN_ROWS % 2 == 0]
    if len(half) == len(rows):
        return _with_seconds(whole, whole.seconds * num_rows / len(rows))
    slope = (whole.seconds - _course(half, learnt, config, speed).seconds) / (len(rows) - len(half))
    return _with_seconds(whole, whole.seconds + slope * (num_rows - len(rows)))


def _with_seconds(course: Course, seconds: float) -> Course:
    return Course(seconds, course.cached_share, course.work, course.steps, course.occupancy, course.kv_occupancy)


def _course(rows: Sequence[Asked], learnt: Sequence[tuple[int, ...]], config: EngineConfig, speed: Tempo) -> Course:
    simulator, numbers = Simulator(config, speed.cost), itertools.count()
    simulate(simulator, (SimulatedRequest(prompt, 1) for prompt in learnt), numbers)
    before, steps, used, work = simulator.counts(), simulator.steps, simulator.used_blocks, simulator.work
    simulate(simulator, (request for row in rows for request in row.requests), numbers)
    prompt, cached = (now - then for now, then in zip(simulator.counts()[:2], before[:2], strict=True))
    own = Work(*(now - then for now, then in zip(simulator.work, work, strict=True)))
    count = max(simulator.steps - steps, 1)
    answers = sum(row.num_output for row in rows) * (1 + len(learnt) / max(len(rows), 1))
    assert config.num_blocks is not None, "the simulator asks for it"
    return Course(
        speed.seconds(simulator.seconds, answers),
        cached / prompt if prompt else 0.0,
        own,
        count,
        own.sequences / count / config.max_sequences,
        (simulator.used_blocks - used) / count / config.num_blocks,
    )
