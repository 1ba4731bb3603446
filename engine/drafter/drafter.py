"""Drafter: guesses how an output goes on. Right or wrong, a draft never changes an output, only how many steps it
takes."""

from __future__ import annotations

from collections.abc import Sequence as Items
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from engine.sequence import Sequence


class Context:
    """A sequence that has settled a step, and the draft that is growing behind it."""

    __slots__ = ("chances", "draft", "origins", "planned", "room", "sequence", "weight")

    def __init__(self, sequence: Sequence, room: int, weight: float = 1.0) -> None:
        self.sequence = sequence
        self.draft: list[int] = []
        self.origins: list[int] = []  # of each token of the draft, as Acceptance numbers them
        self.chances: list[NDArray[np.float32] | None] = []  # of each, see Guess
        self.planned = 0  # tokens that the draft was to have, where its last ones are random
        self.weight = weight  # see budget.weigh
        self.room = room  # how much longer the draft may grow

    def last(self, count: int) -> tuple[int, ...]:
        """The last tokens of prompt, output and draft, as many as there are up to `count`."""
        draft, tokens = self.draft, self.sequence.tokens
        if len(draft) >= count:
            return tuple(draft[-count:])
        return (*tokens[len(draft) - count :], *draft) if draft else tuple(tokens[-count:])


class Guess(NamedTuple):
    """Tokens that may follow a context. `kinds` says of each which of the drafter's kinds it is of.

    Tokens that were drawn at random come with the distributions that they were drawn from, each [vocab], and are
    verified by rejection sampling; any others with none, and are verified by what the model would have drawn itself.
    Rejection sampling is exact only if a token's own value has no part in whether it is verified. So a random guess
    says how many tokens it was to have, and what came out does not count when the verified ones are chosen.
    """

    tokens: list[int]
    kinds: list[int]
    chances: Items[NDArray[np.float32]] = ()
    planned: int = 0  # of a random guess


NONE = Guess([], [])


class Drafter(Protocol):
    """A source of guesses. It sees all contexts of a step at once, so that one with a model can compute them together.

    `priors` holds, for each kind of guess that it makes, the acceptance rate assumed before any has been seen; the
    kinds should part good guesses from bad ones, as the rates learnt by kind decide what is worth verifying. A drafter
    that reads the target's hidden states (heads) keeps them by sequence and looks them up here.
    """

    @property
    def name(self) -> str: ...

    @property
    def costly(self) -> bool:
        """Whether a guess takes about as long as a step."""
        ...

    @property
    def priors(self) -> tuple[float, ...]: ...

    def guess(self, contexts: Items[Context]) -> Items[Guess]:
        """A guess for each context, NONE where there is none. More than `room` tokens are cut off."""
        ...

    def finish(self, sequence: Sequence) -> None:
        """The sequence has ended, or was aborted: learn from it, and forget what was kept of it."""
        ...
