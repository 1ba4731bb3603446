"""Trial: the rows that a plan computes, in the worker's own engine, and what its steps cost."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from db.settings import Settings
from engine.config import EngineConfig
from engine.request import Request
from engine.simulation import FittedCost, SimulatedRequest, Simulator, fit, fit_most, pass_through
from worker.asked import AskedRows
from worker.counters import BESIDE
from worker.frame import Seen
from worker.intervals import spread_of_sums
from worker.open_model import OpenModel
from worker.plans import Plan
from worker.rows import Result
from worker.sources import Stop
from worker.timings import TimedStep

# A step that took so many times what others like it take was disturbed: it was the engine's first, something was
# compiled or measured in it, or the machine stood still. That happens once, and not once in every so many rows.
DISTURBED = 2.0
LEAST_PART = 0.2
FEWEST_STEPS, MOST_AGAIN = 16, 4
STRETCHES = 8  # of steps, whose speeds are compared


@dataclass(frozen=True, slots=True)
class Tried:
    """Results by row, and the steps; `beside`: other jobs were in some of them too.

    `further` has what rows asked for after their first answers; those that did not are not in it.
    """

    results: dict[int, Result]
    steps: Sequence[TimedStep]
    beside: bool
    further: Mapping[int, tuple[Request, ...]] = field(default_factory=dict)

    def asked_for(self, row: Seen) -> tuple[Request, ...]:
        """All requests of a row that was computed."""
        assert row.asking is not None, "only rows that are asked are drawn"
        return (*row.asking.requests, *self.further.get(row.index, ()))


@dataclass(frozen=True, slots=True)
class Speed:
    """What steps cost here.

    A simulation's seconds are completed with `extra` for each token of an answer, for what a token a step leaves out or
    has too much (drafts, the scoring of labels), and multiplied by `level`. `spread` is the standard deviation of one
    stretch of steps, relative.
    """

    cost: FittedCost
    level: float
    extra: float
    spread: float

    def seconds(self, simulated: float, answer_tokens: float) -> float:
        """Never less than a part of what was simulated: a small sample may say that a token costs less than nothing."""
        return self.level * max(simulated + self.extra * answer_tokens, LEAST_PART * simulated)


def run(rows: Sequence[Seen], made: Plan, model: OpenModel, stop: Stop, job: str, told: Callable[[int], None]) -> Tried:
    """Compute rows, beside whatever else the engine does; `told` hears how many are done.

    Raises Stopped, EngineFailed.
    """
    asked = AskedRows(made.maker)
    results: dict[int, Result] = {}
    further: dict[int, tuple[Request, ...]] = {}

    def requests() -> Generator[Request, None, None]:
        for row in rows:
            if row.asking is not None:
                yield from asked.ask(row.index, row.asking)

    model.counters(job)  # what was counted before is not the sample's
    with model.timed() as steps:
        for output in model.run(asked.with_further(requests()), stop, job):
            answered = asked.take(output)
            if answered is not None:
                results[answered.row] = answered.result
                if answered.further:
                    further[answered.row] = answered.further
                told(len(results))
    return Tried(results, tuple(steps), BESIDE in model.counters(job), further)


def more_steps(rows: Sequence[Seen], tried: Tried, model: OpenModel, stop: Stop, job: str) -> Sequence[TimedStep]:
    """Where the trial took too few steps to tell prices from, those of computing the rows' first requests again, each
    time under a name of its own, so that the cache serves no more of them. None: it took enough.

    An engine's first steps are slow ones: of a job of labels, which is done in seconds, there were no others. Raises
    Stopped, EngineFailed.
    """
    with model.timed() as steps:
        for turn in range(MOST_AGAIN):
            if len(tried.steps) + len(steps) >= FEWEST_STEPS:
                break
            name = f"{job} {turn}"
            requests = (
                replace(request, id=(row.index, place), owner=name)
                for row in rows
                if row.asking is not None
                for place, request in enumerate(row.asking.requests)
            )
            for _ in model.run(requests, stop, name):
                pass
            model.counters(name)
    return tuple(steps)


def speed_of(steps: Sequence[TimedStep], tried: Tried, simulated: Callable[[FittedCost], float]) -> Speed | None:
    """From all steps that were timed, the trial's and what came before it; `simulated` gives the seconds that the trial
    takes at such prices. None: there was no step."""
    timed = [step for step in steps if step.seconds > 0]
    if not timed:
        return None
    cost = fit_most([step.work for step in timed], [step.seconds for step in timed])
    calm = [step for step in timed if step.seconds <= DISTURBED * cost.seconds(step.work)] or timed
    cost = fit([step.work for step in calm], [step.seconds for step in calm])
    level = sum(step.seconds for step in calm) / sum(cost.seconds(step.work) for step in calm)
    extra, answers = 0.0, sum(result.output_tokens for result in tried.results.values())
    if answers and not tried.beside:  # else the steps did other jobs' work as well
        extra = (sum(cost.seconds(step.work) for step in tried.steps) - simulated(cost)) / answers
    return Speed(cost, level, extra, spread_of_sums(_ratios(calm, cost)))


def _ratios(steps: Sequence[TimedStep], cost: FittedCost) -> list[float]:
    """Measured over fitted seconds of stretches of steps that should take about as long as each other."""
    whole = sum(cost.seconds(step.work) for step in steps)
    ratios, measured, expected = [], 0.0, 0.0
    for step in steps:
        measured, expected = measured + step.seconds, expected + cost.seconds(step.work)
        if expected >= whole / STRETCHES:
            ratios.append(measured / expected)
            measured = expected = 0.0
    return ratios


def simulate(simulator: Simulator, requests: Iterable[SimulatedRequest], numbers: Iterator[int]) -> float:
    """Run requests as the engine's thread takes them, to the last one's end. Returns the seconds that it took; what an
    engine would refuse costs nothing. `numbers` name the requests, each another one."""
    began = simulator.seconds
    for _ in pass_through(simulator, zip(numbers, requests, strict=False)):
        pass
    return simulator.seconds - began


def config_of(settings: Settings, num_blocks: int) -> EngineConfig:
    """What decides a worker's schedule."""
    return EngineConfig(
        block_size=settings.engine_block_size,
        max_sequences=settings.engine_max_sequences,
        token_budget=settings.engine_token_budget,
        prefix_caching=settings.engine_prefix_caching,
        num_blocks=num_blocks,
    )
