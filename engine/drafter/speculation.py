"""Speculation: puts the drafters' guesses together into drafts, and decides which are worth their verification."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from collections.abc import Sequence as Items
from operator import itemgetter

import numpy as np

from engine.drafter.acceptance import Acceptance, DraftStats
from engine.drafter.budget import Load, choose, weigh
from engine.drafter.costs import StepCosts
from engine.drafter.drafter import Context, Drafter, Guess
from engine.sequence import Sequence

ROUNDS = 6  # most guesses, one behind the other, in a draft
LEAST = 0.05  # a token less likely than this is not looked at
PATIENCE = 4  # proposals in a row that did not pay, before a pause
LONGEST_PAUSE = 64  # steps
TRIFLE = 0.005  # of a step's time


class Speculation:
    """Takes the likeliest of the drafters' guesses; costly drafters are asked where nobody else has one."""

    def __init__(self, drafters: Items[Drafter], measure: Callable[[], StepCosts], *, longest: int = 16) -> None:
        """`measure` is called once, when there is first something to decide. `longest` bounds a draft."""
        self._drafters = tuple(drafters)
        self._measure = measure
        self._costs: StepCosts | None = None
        self._longest = longest
        self._acceptance = Acceptance(self._drafters)
        self._vain = 0  # proposals in a row that did not pay
        self._pause = 0  # steps until the next one
        self._rows = 0  # when the pause began

    def propose(self, sequences: Items[Sequence], load: Load) -> None:
        """Give drafts to those of the sequences where that pays. All have just settled a step."""
        if self.rests(load.rows):
            return
        began = time.perf_counter()
        weights = weigh([each.draft_room + 1 for each in sequences], load)
        contexts = [
            Context(each, min(each.draft_room, self._longest), weight)
            for each, weight in zip(sequences, weights, strict=True)
        ]
        rates = self._acceptance.rates()
        self._grow([context for context in contexts if context.room > 0], rates)
        contexts = [context for context in contexts if context.draft]
        if not contexts:
            self._rest(None, began, load)
            return
        if self._costs is None:
            self._costs = self._measure()
            began = time.perf_counter()
        survivals = [_survivals(context, rates) for context in contexts]
        kept = [[chance for chance in draft if chance >= LEAST] for draft in survivals]
        counts, saved = choose(kept, [context.weight for context in contexts], load, self._costs)
        for context, count in zip(contexts, counts, strict=True):
            if count:
                chances = context.chances[:count] if context.planned else ()
                context.sequence.propose(context.draft[:count], context.origins[:count], chances)
        self._rest(saved, began, load)

    def rests(self, num_rows: int) -> bool:
        """Whether a step that so many rows go on from passes without a guess. Counts it if so."""
        if self._pause and num_rows > self._rows // 2:
            self._pause -= 1
            return True
        return False

    def settle(self, sequence: Sequence, verified: int, accepted: int) -> None:
        """The first `verified` tokens of the sequence's draft were verified, and `accepted` of them were right."""
        if verified and sequence.origins:
            self._acceptance.record(sequence.origins[:verified], accepted)

    def finish(self, sequence: Sequence) -> None:
        """The sequence has ended, or was aborted."""
        for drafter in self._drafters:
            drafter.finish(sequence)

    def stats(self) -> tuple[DraftStats, ...]:
        return self._acceptance.stats()

    def _grow(self, contexts: list[Context], rates: list[float]) -> None:
        """Extend drafts until nobody has a guess. Grammars follow the drafts, and are back where they were after it."""
        growing = contexts
        for _ in range(ROUNDS):
            waiting, extended = growing, []
            for costly in (False, True):
                went = self._extend_all(waiting, rates, costly=costly)
                extended += [context for context, taken in zip(waiting, went, strict=True) if taken]
                waiting = [context for context, taken in zip(waiting, went, strict=True) if not taken]
            growing = [context for context in extended if context.room > 0]
            if not growing:
                break
        for context in contexts:
            if context.draft and context.sequence.grammar is not None:
                context.sequence.grammar.rollback(len(context.draft))

    def _extend_all(self, contexts: list[Context], rates: list[float], *, costly: bool) -> list[bool]:
        """Put behind each draft the guess that is the likeliest to begin right. Returns which of them grew."""
        ranked: list[list[tuple[float, int, Guess]]] = [[] for _ in contexts]
        for i_drafter, drafter in enumerate(self._drafters):
            if drafter.costly == costly and contexts:
                for guesses, guess in zip(ranked, drafter.guess(contexts), strict=True):
                    if guess.tokens:
                        (origin,) = self._acceptance.origins(i_drafter, guess.kinds[:1])
                        guesses.append((-rates[origin], i_drafter, guess))
        return [self._extend_by_best(*pair) for pair in zip(contexts, ranked, strict=True)]

    def _extend_by_best(self, context: Context, guesses: list[tuple[float, int, Guess]]) -> bool:
        for _, i_drafter, guess in sorted(guesses, key=itemgetter(0, 1)):
            taken = _extend(context, guess)
            if taken:
                context.origins += self._acceptance.origins(i_drafter, guess.kinds[:taken])
                return True
        return False

    def _rest(self, saved: float | None, began: float, load: Load) -> None:
        """Pause for longer and longer while no guess is worth verifying, or guessing, since `began`, takes time that
        counts and more than it is expected to save. `saved` None: there was no guess."""
        spent = time.perf_counter() - began
        if load.alone:
            pays = (saved or 0.0) > spent
        elif self._costs is None:
            return
        else:
            step = self._costs.seconds(np.array([load.tokens]), np.array([0]))[0]
            pays = saved != 0 if spent < TRIFLE * step else (saved or 0.0) > spent
        self._vain = 0 if pays else self._vain + 1
        # Doubles with every vain proposal from the PATIENCE-th on.
        self._pause = min(1 << self._vain >> PATIENCE, LONGEST_PAUSE)
        self._rows = load.rows


def _extend(context: Context, guess: Guess) -> int:
    """Put a guess behind a draft, as far as there is room, the output goes on, and the grammar allows it. Returns how
    many tokens that is."""
    stop_ids = context.sequence.stop_ids
    if guess.planned:
        return _extend_randomly(context, guess)
    fitting = list(itertools.takewhile(lambda token: token not in stop_ids, guess.tokens[: context.room]))
    grammar = context.sequence.grammar
    if grammar is not None and fitting:
        del fitting[grammar.accept(fitting) :]
    context.draft += fitting
    context.chances += [None] * len(fitting)
    context.room -= len(fitting)
    return len(fitting)


def _extend_randomly(context: Context, guess: Guess) -> int:
    """Put a random guess behind a draft, whole, and nothing after it: what might follow depends on what was drawn."""
    grammar = context.sequence.grammar
    if grammar is not None:
        accepted = grammar.accept(guess.tokens)
        assert accepted == len(guess.tokens), "random guesses are held to the format"
    context.planned = len(context.draft) + guess.planned
    context.draft += guess.tokens
    context.chances += guess.chances
    context.room = 0
    return len(guess.tokens)


def _survivals(context: Context, rates: list[float]) -> list[float]:
    """For each token of a draft, and each that was planned, the probability that all up to it are accepted."""
    chances = [rates[origin] for origin in context.origins]
    chances += [chances[-1]] * (context.planned - len(chances))
    return list(itertools.accumulate(chances, float.__mul__))
