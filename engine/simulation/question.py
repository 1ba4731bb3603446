"""Question and Answer: how long a job would take on given devices, and what would hold it up. No torch here."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Protocol

from engine.config import EngineConfig
from engine.errors import InvalidRequest
from engine.simulation.costs import StepCost
from engine.simulation.lengths import Lengths
from engine.simulation.requests import SimulatedRequest
from engine.simulation.run import simulate, steady_rate
from engine.work import Work

FEWEST_ROWS = 2000
TURNS = 20  # times that every place of an engine is taken in a sample


@dataclass(frozen=True, slots=True)
class Question:
    """`rows` rows on `engines` engines alike, each with its part of them; `shared` tokens begin every prompt."""

    rows: int
    prompt: Lengths
    output: Lengths
    shared: int = 0
    engines: int = 1
    sample_rows: int | None = None  # simulated on one engine; none: as many as its places are taken 20 times with

    def __post_init__(self) -> None:
        for name in ("rows", "engines"):
            if getattr(self, name) < 1:
                raise InvalidRequest(name, getattr(self, name), "must be at least 1")
        if self.shared < 0:
            raise InvalidRequest("shared", self.shared, "must be at least 0")
        if self.sample_rows is not None and self.sample_rows < 100:
            raise InvalidRequest("sample_rows", self.sample_rows, "must be at least 100: fewer are never steady")


@dataclass(frozen=True, slots=True)
class Answer:
    """Rates are of all engines together. `seconds` is the time of the whole job; where it is more than was simulated,
    what is left goes on at the rate of the sample's middle, `steady_rows_per_second`."""

    seconds: float
    extrapolated: bool
    simulated_rows: int
    simulated_seconds: float
    steady_rows_per_second: float
    rows_per_second: float
    prompt_tokens_per_second: float
    output_tokens_per_second: float
    cached_share: float  # of prompt tokens
    refused_share: float  # of rows: longer than the model or the cache allows
    mean_prompt: float
    mean_output: float
    occupancy: float
    kv_occupancy: float
    starved: float  # share of the sample's steps in which rows waited for memory alone
    preemptions: int  # in the sample
    shares: Mapping[str, float]  # of the time, by what it is spent on
    full_rate_seconds: float  # of the whole job, were the cost model's efficiency 1

    @property
    def bound(self) -> str:
        """What the largest share is spent on; KV memory where that keeps places empty that rows wait for."""
        if self.starved > 0.5:
            return "KV memory"
        return max(self.shares, key=lambda name: self.shares[name])


class Tally:
    """A cost that also adds up where the time goes."""

    def __init__(self, cost: PartedCost) -> None:
        self._cost = cost
        self.parts: dict[str, float] = {}

    def seconds(self, work: Work, steps: int = 1) -> float:
        for name, seconds in self._cost.parts(work, steps).items():
            self.parts[name] = self.parts.get(name, 0.0) + seconds
        return self._cost.seconds(work, steps)

    @property
    def shares(self) -> dict[str, float]:
        total = sum(self.parts.values())
        return {name: seconds / total for name, seconds in self.parts.items() if seconds}


class PartedCost(StepCost, Protocol):
    """A cost that says what its seconds are spent on."""

    def parts(self, work: Work, steps: int = 1) -> dict[str, float]: ...


def answer(question: Question, config: EngineConfig, cost: PartedCost) -> Answer:
    """Simulate the rows of one engine, or a sample of them. Raises InvalidRequest, for rows of which none fits too."""
    own = math.ceil(question.rows / question.engines)
    rows = min(own, question.sample_rows or max(FEWEST_ROWS, TURNS * config.max_sequences))
    tally = Tally(cost)
    done = simulate(requests(replace(question, rows=rows)), config, tally)
    if not done.rows:
        raise InvalidRequest("prompt", question.prompt.points[-1][1], "no row fits the model's length or the cache")
    steady = steady_rate(done) if own > rows else done.rows / done.seconds
    kept = done.rows / rows
    seconds = done.seconds + (own - rows) * kept / steady
    scale = question.rows * kept / seconds / done.rows  # from counts of the sample to rates of the whole
    return Answer(
        seconds=seconds,
        extrapolated=own > rows,
        simulated_rows=rows,
        simulated_seconds=done.seconds,
        steady_rows_per_second=steady * question.engines,
        rows_per_second=question.rows * kept / seconds,
        prompt_tokens_per_second=done.prompt_tokens * scale,
        output_tokens_per_second=done.output_tokens * scale,
        cached_share=done.cached_tokens / done.prompt_tokens,
        refused_share=1 - kept,
        mean_prompt=done.prompt_tokens / done.rows,
        mean_output=done.output_tokens / done.rows,
        occupancy=done.occupancy,
        kv_occupancy=done.kv_occupancy,
        starved=done.starved,
        preemptions=done.preemptions,
        shares=tally.shares,
        full_rate_seconds=seconds * sum(tally.parts.values()) / done.seconds,
    )


def requests(question: Question, seed: int = 0, first: int = 0) -> Iterator[SimulatedRequest]:
    """Rows with lengths drawn from the question's; those that are shorter than what is shared have nothing else."""
    dice = random.Random(seed)  # noqa: S311 - no secret
    for number in range(first, first + question.rows):
        prompt, output = question.prompt.draw(dice), question.output.draw(dice)
        yield SimulatedRequest.of_lengths(number, prompt, output, shared=min(question.shared, prompt))
