"""Acceptance: how often guesses of each kind turned out right."""

from __future__ import annotations

from collections.abc import Sequence as Items
from dataclasses import dataclass

from engine.drafter.drafter import Drafter

WEIGHT = 8.0  # observations that a prior counts for
WINDOW = 512.0  # observations after which old ones fade


@dataclass(frozen=True, slots=True)
class DraftStats:
    """What came of one drafter's guesses so far."""

    name: str
    proposed: int  # tokens verified
    accepted: int  # of these, the tokens that the model agreed with
    steps: int  # verifications of a sequence that held tokens of this drafter

    @property
    def tokens_per_step(self) -> float:
        """Tokens that such a verification brought beyond the one that a step brings anyway."""
        return self.accepted / self.steps if self.steps else 0.0


class Acceptance:
    """Rates by origin: a number for every drafter's every kind of guess."""

    def __init__(self, drafters: Items[Drafter]) -> None:
        self._names = [drafter.name for drafter in drafters]
        self._first: list[int] = []  # origin of a drafter's kind 0
        self._owner: list[int] = []  # drafter of an origin
        self._right: list[float] = []
        self._seen: list[float] = []
        for i_drafter, drafter in enumerate(drafters):
            self._first.append(len(self._owner))
            for prior in drafter.priors:
                self._owner.append(i_drafter)
                self._right.append(prior * WEIGHT)
                self._seen.append(WEIGHT)
        self._proposed = [0] * len(drafters)
        self._accepted = [0] * len(drafters)
        self._steps = [0] * len(drafters)

    def origins(self, i_drafter: int, kinds: Items[int]) -> list[int]:
        """The origins of a drafter's kinds."""
        first = self._first[i_drafter]
        return [first + kind for kind in kinds]

    def rates(self) -> list[float]:
        """The probability, by origin, that a token is accepted where all before it were."""
        return [right / seen for right, seen in zip(self._right, self._seen, strict=True)]

    def record(self, origins: Items[int], accepted: int) -> None:
        """A draft of tokens from these origins was verified; the first `accepted` of them were right.

        What stands behind the first wrong token says nothing about its own rate.
        """
        drafters = [self._owner[origin] for origin in origins]
        for i_drafter in set(drafters):
            self._steps[i_drafter] += 1
        for place, (origin, i_drafter) in enumerate(zip(origins, drafters, strict=True)):
            self._proposed[i_drafter] += 1
            if place > accepted:
                continue
            right = place < accepted
            self._accepted[i_drafter] += right
            self._right[origin] += right
            self._seen[origin] += 1
            if self._seen[origin] > WINDOW:
                self._right[origin] /= 2
                self._seen[origin] /= 2

    def stats(self) -> tuple[DraftStats, ...]:
        columns = (self._names, self._proposed, self._accepted, self._steps)
        return tuple(DraftStats(*row) for row in zip(*columns, strict=True))
