"""Measures what the steps of an engine cost on the machine at hand, for `fit`."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Hashable, Iterator
from dataclasses import replace
from typing import NamedTuple

from engine.config import EngineConfig
from engine.engine import Engine
from engine.errors import InvalidRequest
from engine.request import Request, SamplingParams
from engine.simulation.costs import FittedCost, fit
from engine.simulation.requests import SimulatedRequest
from engine.simulation.simulator import Simulator
from engine.work import Work

FEWER = (1, 4, 16)  # sequences at a time, beside as many as there may be
LONGEST = 512  # of the prompts
DECODED = 12  # tokens, of what is measured with fewer sequences
FREE = FittedCost((0.0,) * 6, 0.0)


class MeasuredSteps(NamedTuple):
    """The work of steps that an engine made, and the seconds that each took."""

    works: list[Work]
    seconds: list[float]

    def plus(self, other: MeasuredSteps) -> MeasuredSteps:
        return MeasuredSteps(self.works + other.works, self.seconds + other.seconds)

    def cost(self) -> FittedCost:
        return fit(self.works, self.seconds)


def measure_steps(
    engine: Engine, config: EngineConfig, *, seed: int = 0, clock: Callable[[], float] = time.perf_counter
) -> MeasuredSteps:
    """Time the steps of an idle engine on requests of random tokens: prompts of up to 512 tokens in whole steps, and
    decodes of few and of as many sequences as `config` has. Takes as long as about 15,000 tokens of a prompt.

    The work of each step is what the simulator says of the same requests: it plans the same steps.

    Raises InvalidRequest for an engine that speculates: what it computes depends on what the model says.
    """
    stats = engine.stats()
    if stats.drafts:
        raise InvalidRequest("speculation", True, "steps are measured on an engine without it")
    dice = random.Random(seed)  # noqa: S311 - no secret
    works: list[Work] = []
    simulator = Simulator(replace(config, num_blocks=stats.blocks_total), FREE, works=works)
    seconds: list[float] = []
    for lengths in _workloads(config.max_sequences, min(LONGEST, engine.max_model_len - DECODED)):
        wanted = [SimulatedRequest(_prompt(dice, prompt), output) for prompt, output in lengths]
        seconds += _timed(engine, simulator, wanted, owner=("measured", seed, time.time_ns()), clock=clock)
    computed = engine.stats().computed_tokens - stats.computed_tokens
    assert sum(work.tokens for work in works) == computed, "the simulated steps compute other tokens"
    return MeasuredSteps(works, seconds)


def _workloads(most: int, longest: int) -> Iterator[list[tuple[int, int]]]:
    """Lengths of prompts and outputs of what runs together."""
    for count in FEWER:
        if count < most:
            yield [(longest * (i + 1) // count, DECODED) for i in range(count)]
    # Lengths that grow by a factor: most are short, and the longest are cut by the budget.
    spread = [max(int(16 * (longest / 16) ** (i / max(most - 1, 1))), 1) for i in range(most)]
    yield [(min(length, longest), DECODED) for length in spread]
    yield [(min(24, longest), 2 + 22 * i // most) for i in range(most)]


def _prompt(dice: random.Random, length: int) -> tuple[int, ...]:
    return tuple(dice.randrange(1, 256) for _ in range(length))


def _timed(
    engine: Engine, simulator: Simulator, wanted: list[SimulatedRequest], *, owner: Hashable, clock: Callable[[], float]
) -> list[float]:
    """Seconds of each step. The owner is nobody's else, so that what is in the engine's cache already is of no use."""
    seconds: list[float] = []
    queue = list(enumerate(wanted))[::-1]
    while queue or not engine.idle:
        while queue and engine.has_room:
            number, each = queue.pop()
            sampling = SamplingParams(max_tokens=each.num_output, ignore_eos=True)
            engine.add(Request((owner, number), each.prompt, sampling, owner=owner))
            simulator.add(number, replace(each, owner=owner))
        began = clock()
        engine.step()
        seconds.append(clock() - began)
        simulator.step()
        assert simulator.idle == engine.idle, "the simulator plans other steps"
    return seconds
