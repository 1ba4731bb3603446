"""simulate: requests through a Simulator, and what came of them. No torch here."""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from engine.config import EngineConfig
from engine.errors import RequestTooLong
from engine.simulation.costs import StepCost
from engine.simulation.requests import SimulatedRequest
from engine.simulation.simulator import Simulator
from engine.work import Work

STEADY = (0.25, 0.75)  # of rows, by their ends: beyond the beginning, before the tail


@dataclass(frozen=True, slots=True)
class Simulated:
    """What came of some requests; `seconds` are the simulated clock's."""

    rows: int
    refused: int  # longer than the model or the cache allows
    seconds: float
    steps: int
    prompt_tokens: int
    cached_tokens: int  # of these, found in the prefix cache
    output_tokens: int
    computed_tokens: int
    preemptions: int
    occupancy: float  # mean over steps: the share of max_sequences that was computed
    kv_occupancy: float  # mean over steps: the share of the cache's blocks that was in use
    starved: float  # share of steps in which a request waited for blocks, and for nothing else
    work: Work  # of all steps
    ends: array[float] = field(repr=False)  # second at which each request ended, in their order; infinite: refused


def pass_through(simulator: Simulator, requests: Iterable[tuple[int, SimulatedRequest]]) -> Iterator[tuple[int, float]]:
    """Requests by number, each taken when there is room for it, as Engine.generate does: number and second of each as
    it ends; infinite, and at once, of what an engine would refuse. Raises InvalidRequest."""
    source, more = iter(requests), True
    while more or not simulator.idle:
        while more and simulator.has_room:
            number, request = next(source, (0, None))
            if request is None:
                more = False
                break
            try:
                simulator.add(number, request)
            except RequestTooLong:
                yield number, math.inf
        if not simulator.idle:
            for number in simulator.step():
                yield number, simulator.seconds


def simulate(
    requests: Iterable[SimulatedRequest],
    config: EngineConfig,
    cost: StepCost,
    *,
    jumps: bool = True,
    works: list[Work] | None = None,
) -> Simulated:
    """Run requests through a Simulator, which see. Raises InvalidRequest."""
    simulator = Simulator(config, cost, jumps=jumps, works=works)
    ends, lengths = array("d"), array("q")

    def numbered() -> Iterator[tuple[int, SimulatedRequest]]:
        for number, request in enumerate(requests):
            ends.append(math.inf)
            lengths.append(request.num_output)
            yield number, request

    refused, output_tokens = 0, 0
    for number, end in pass_through(simulator, numbered()):
        ends[number] = end
        refused += end == math.inf
        output_tokens += lengths[number] if end < math.inf else 0
    prompt_tokens, cached_tokens, computed_tokens, preemptions = simulator.counts()
    steps = max(simulator.steps, 1)
    assert config.num_blocks is not None
    return Simulated(
        rows=len(ends) - refused,
        refused=refused,
        seconds=simulator.seconds,
        steps=simulator.steps,
        prompt_tokens=prompt_tokens,
        cached_tokens=cached_tokens,
        output_tokens=output_tokens,
        computed_tokens=computed_tokens,
        preemptions=preemptions,
        occupancy=simulator.work.sequences / steps / config.max_sequences,
        kv_occupancy=simulator.used_blocks / steps / config.num_blocks,
        starved=simulator.starved_steps / steps,
        work=simulator.work,
        ends=ends,
    )


def steady_rate(done: Simulated) -> float:
    """Rows per second of an engine that is full: those of the middle half, by their ends."""
    ends = sorted(end for end in done.ends if math.isfinite(end))
    low, high = (int(share * (len(ends) - 1)) for share in STEADY)
    between = ends[high] - ends[low]
    return (high - low) / between if between > 0 else done.rows / done.seconds
