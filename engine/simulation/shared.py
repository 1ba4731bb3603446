"""SharedEngine: an engine that computes the rows of several shards at once, seen as flows. No torch here.

Ten million rows, one by one, would take hours to simulate. An engine that is full goes on as it does: so what flows
through it with a mixture of rows is measured once, by the simulator, and each shard is taken for a quantity that enters
at that rate and leaves when its last row has ended. tests/bench/fleet.py has how far that is off.
"""

from __future__ import annotations

import math
import random
from array import array
from collections import Counter
from collections.abc import Hashable, Iterator
from collections.abc import Sequence as Items
from dataclasses import dataclass

from engine.config import EngineConfig
from engine.errors import InvalidRequest
from engine.simulation.costs import StepCost
from engine.simulation.lengths import Lengths
from engine.simulation.requests import SimulatedRequest
from engine.simulation.run import STEADY, pass_through, simulate
from engine.simulation.simulator import Simulator

FEWEST_ROWS = 1000
TURNS = 16  # times that every place of an engine is taken to measure a flow
TINY = 1e-3  # of a row: what arithmetic leaves of none


@dataclass(frozen=True, slots=True)
class Profile:
    """Rows that are alike: how long prompts and answers are, and tokens that the prompts begin with alike."""

    prompt: Lengths
    output: Lengths
    shared: int = 0


@dataclass(frozen=True, slots=True)
class Flow:
    """A full engine that takes a row from each source in turn."""

    rate: float  # rows per second, of all sources together
    inside: float  # rows that are computed or wait in the engine
    drains: dict[int, float]  # by profile: seconds from a source's last row going in to the end of all of its rows


class Pace:
    """What flows through an engine, by what is on it; each case is simulated once. A profile is named by its place."""

    def __init__(self, profiles: Items[Profile], config: EngineConfig, cost: StepCost) -> None:
        """Raises InvalidRequest for a profile of which no row fits."""
        self._profiles, self._config, self._cost = tuple(profiles), config, cost
        self._flows: dict[tuple[tuple[int, int], ...], Flow] = {}
        self._alone: dict[tuple[int, int], float] = {}
        for kind in range(len(self._profiles)):
            self.flow([kind])

    def flow(self, kinds: Items[int]) -> Flow:
        """With these sources. Rows that are too long are refused as they go in, and count."""
        counts = Counter(kinds)
        common = math.gcd(*counts.values())
        mix = tuple((kind, count // common) for kind, count in sorted(counts.items()))
        if mix not in self._flows:
            self._flows[mix] = self._measured([kind for kind, count in mix for _ in range(count)])
        return self._flows[mix]

    def _measured(self, turn: Items[int]) -> Flow:
        count = max(FEWEST_ROWS, TURNS * self._config.max_sequences)
        simulator, began, ends = Simulator(self._config, self._cost), array("d"), array("d", [math.inf]) * count

        def numbered() -> Iterator[tuple[int, SimulatedRequest]]:
            for number, request in enumerate(self.rows(turn, count)):
                began.append(simulator.seconds)
                yield number, request

        for number, end in pass_through(simulator, numbered()):
            ends[number] = end if end < math.inf else began[number]
        if not simulator.steps:
            tokens = self._profiles[turn[0]].prompt.points[-1][1]
            raise InvalidRequest("prompt", tokens, "no row fits the model's length or the cache")
        first, last = (int(share * (count - 1)) for share in STEADY)
        ordered = sorted(ends)
        rate = (last - first) / max(ordered[last] - ordered[first], TINY / count)
        latest, waits = [0.0] * len(turn), [array("d") for _ in turn]
        for number in range(last):
            source = number % len(turn)
            latest[source] = max(latest[source], ends[number])
            if number >= first:
                waits[source].append(latest[source] - began[number])
        inside = rate * sum(ends[number] - began[number] for number in range(first, last)) / (last - first)
        return Flow(rate, inside, {kind: sum(each) / len(each) for kind, each in zip(turn, waits, strict=True)})

    def alone(self, kind: int, rows: int) -> float:
        """Seconds that rows take on an engine without others."""
        if (kind, rows) not in self._alone:
            self._alone[kind, rows] = simulate(self.rows([kind], rows), self._config, self._cost).seconds
        return self._alone[kind, rows]

    def rows(self, turn: Items[int], count: int, seed: int = 0, first: int = 0) -> Iterator[SimulatedRequest]:
        """Rows of profiles in turn, with lengths drawn from these; each profile has a beginning of its own."""
        dice = random.Random(seed)  # noqa: S311 - no secret
        for number in range(first, first + count):
            kind = turn[number % len(turn)]
            profile = self._profiles[kind]
            prompt, output = profile.prompt.draw(dice), profile.output.draw(dice)
            shared = min(profile.shared, prompt)
            yield SimulatedRequest.of_lengths(number, prompt, output, shared=shared, prefix=kind)


@dataclass(slots=True)
class _Shard:
    kind: int
    rows: int
    left: float  # rows that are not in the engine yet
    end: float = math.inf  # known when none is left


class SharedEngine:
    """Shards on one engine. `now` is its clock, which `advance` alone moves; `busy`: seconds in which it had work."""

    def __init__(self, pace: Pace) -> None:
        self.now = self.busy = 0.0
        self._pace = pace
        self._shards: dict[Hashable, _Shard] = {}
        self._inside = 0.0  # rows, while it fills and when it empties
        self._rate = 0.0  # at which it did last

    def add(self, key: Hashable, kind: int, rows: int) -> None:
        """A shard of at least one row."""
        assert key not in self._shards, "a shard is computed once at a time"
        if not self._shards:
            self._inside = 0.0
        self._shards[key] = _Shard(kind, rows, float(rows))

    @property
    def next_event(self) -> float:
        """Second at which a shard has ended, or has all of its rows in the engine; infinite without shards."""
        self._fill()
        going, flow = self._going()
        times = [each.end for each in self._shards.values()]
        times += [self.now + each.left * len(going) / flow.rate for each in going if flow is not None]
        return max(self.now, min(times, default=math.inf))

    def advance(self, to: float) -> list[Hashable]:
        """Go on to a second, no further than the next event; returns what has ended."""
        self._fill()
        going, flow = self._going()
        seconds, self.now = to - self.now, to
        self.busy += seconds if self._shards else 0.0
        if flow is None:
            self._inside = max(self._inside - self._rate * seconds, 0.0)
        else:
            self._enter(going, flow, flow.rate * seconds / len(going))
            self._rate = flow.rate
        ended = [key for key, each in self._shards.items() if each.end <= to]
        for key in ended:
            del self._shards[key]
        return ended

    def _going(self) -> tuple[list[_Shard], Flow | None]:
        """Shards that have rows to give, and what flows with them."""
        going = [each for each in self._shards.values() if each.left]
        return going, self._pace.flow([each.kind for each in going]) if going else None

    def _fill(self) -> None:
        """Rows go in at once while there is room."""
        going, flow = self._going()
        while flow is not None and flow.inside - self._inside > TINY:
            each = min(*(shard.left for shard in going), (flow.inside - self._inside) / len(going))
            self._inside += each * len(going)
            self._enter(going, flow, each)
            going, flow = self._going()

    def _enter(self, going: Items[_Shard], flow: Flow, rows: float) -> None:
        """So many rows of each. What did not fill the engine ends no later than it would without others."""
        for each in going:
            left = each.left - rows
            each.left = left if left > TINY else 0.0
            if not each.left:
                full = self._inside >= flow.inside - TINY
                drain = flow.drains[each.kind]
                each.end = self.now + (drain if full else min(drain, self._pace.alone(each.kind, each.rows)))
