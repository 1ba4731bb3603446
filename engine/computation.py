"""Computation: a planned batch through the model, beside it what formats allow, and the tokens chosen."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from torch import Tensor

from engine.batch import INVALID, NOTHING, Batch, Sampled
from engine.cache import KVCache
from engine.choice import choice_of
from engine.clock import Clock
from engine.config import EngineConfig
from engine.counters import Counters
from engine.drafter.costs import StepCosts
from engine.drafter.profile import measure_with
from engine.grammar import Backend
from engine.grammar.masks import Masks, Pending
from engine.models import Model
from engine.parallel import Team
from engine.runner import Runner
from engine.runners import chooser_of, runner_of
from engine.sampler import Sampler, settle
from engine.work import Work

if TYPE_CHECKING:
    from engine.chooser import Chooser, Chosen  # imports Triton, which not every machine has


class Flight(NamedTuple):
    """A batch that is being computed."""

    batch: Batch
    num_logits: list[int]  # of each slice
    hidden: Tensor
    masks: Pending | None
    chosen: Chosen | None  # none: the tokens are chosen when the flight ends

    @property
    def needs_host(self) -> bool:
        """Whether no other batch may be begun before this one has ended."""
        return self.chosen is None


class Computation:
    """What a step does between planning and settling. Reports its parts to the clock."""

    def __init__(
        self,
        runner: Runner,
        sampler: Sampler,
        masks: Masks | None,
        clock: Clock,
        counters: Counters,
        *,
        chooser: Chooser | None = None,
    ) -> None:
        """`chooser`: for devices that need not wait for the host; none: every flight needs it."""
        self._runner = runner
        self._sampler = sampler
        self._masks = masks
        self._clock = clock
        self._counters = counters
        self._chooser = chooser

    def begin(self, batch: Batch) -> Flight:
        """Send a batch of at least one slice off to be computed."""
        clock = self._clock
        pending = self._masks.start(batch) if self._masks is not None else None
        clock.lap("masks")
        prepared = self._runner.prepare(batch)
        clock.lap("inputs")
        hidden = self._runner.run(prepared)
        chosen = self._chooser.choose(hidden, batch) if self._chooser is not None and pending is None else None
        clock.lap("model")
        num_logits = batch.num_logits
        self._counters.work = self._counters.work.plus(Work.of(batch, num_logits))
        return Flight(batch, num_logits, hidden, pending, chosen)

    def end(self, flight: Flight) -> list[Sampled]:
        """What came out of a batch. One Sampled per slice."""
        clock, batch, hidden = self._clock, flight.batch, flight.hidden
        if flight.chosen is not None:
            tokens = iter(flight.chosen.read())
            self._runner.check()
            clock.lap("model")
            return [_sampled(next(tokens)) if count else NOTHING for count in flight.num_logits]
        masks = None
        if flight.masks is not None:
            masks, seconds = flight.masks.wait()
            self._counters.mask_seconds += seconds
            clock.lap("masks")
        if all(piece.sequence.plain for piece in batch.slices):
            most, greedy = self._runner.largest(hidden, masks)
            clock.lap("model")
            sampled = settle(most, greedy, batch)
        else:
            logits = self._runner.logits(hidden, masks)
            clock.lap("model")
            sampled = self._sampler.sample(logits, batch)
        self._runner.check()
        clock.lap("sample")
        return sampled

    def time_steps(self, context: int, config: EngineConfig) -> StepCosts:
        """See measure_with. Nothing may be in the cache yet."""
        return measure_with(self._runner, context, config)

    def free_memory(self) -> None:
        """Let go of what can be made again."""
        self._runner.free_memory()

    def close(self) -> None:
        """Let go of the model and the cache. Nothing can be computed afterwards."""
        del self._runner, self._chooser
        if self._masks is not None:
            self._masks.close()


def _sampled(token: int) -> Sampled:
    return Sampled([token]) if token >= 0 else INVALID


def computation_of(
    model: Model,
    cache: KVCache,
    config: EngineConfig,
    *,
    clock: Clock,
    counters: Counters,
    grammars: Backend | None,
    team: Team | None,
) -> Computation:
    """What the configuration asks for."""
    runner, choice = runner_of(model, cache, config), choice_of(config)
    masks = Masks(grammars, model.config.vocab_size, choice) if grammars is not None else None
    chooser = chooser_of(runner) if team is None else None  # tokens would have to reach the other ranks
    runner = runner if team is None else team.lead(runner)
    return Computation(runner, Sampler(choice), masks, clock, counters, chooser=chooser)
