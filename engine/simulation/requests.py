"""SimulatedRequest: a request whose answer is known to be so long. No torch here."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

from engine.errors import InvalidRequest

OUTPUTS = 1 << 20  # made-up tokens of outputs begin here, one for each request: no tokenizer's ids reach it


@dataclass(frozen=True, slots=True)
class Drafts:
    """Speculation as it was measured: tokens guessed for a sequence in a step of its output, and those of them that the
    model agreed with, both on average."""

    proposed: float
    accepted: float

    def __post_init__(self) -> None:
        if not 0 <= self.accepted <= self.proposed:
            raise InvalidRequest("accepted", self.accepted, f"must lie between 0 and proposed={self.proposed}")

    def at(self, step: int) -> tuple[int, int]:
        """Tokens guessed and agreed with in a sequence's step 0, 1, …: whole numbers whose means are the given ones."""
        before, after = int(step * self.proposed), int((step + 1) * self.proposed)
        share = self.accepted / self.proposed if self.proposed else 0.0
        return after - before, int(after * share) - int(before * share)


@dataclass(frozen=True, slots=True)
class SimulatedRequest:
    """`prompt` decides what the prefix cache serves; `num_output` tokens follow it, the one that ends it included."""

    prompt: tuple[int, ...]
    num_output: int
    drafts: Drafts | None = None  # none: a token at a time
    owner: Hashable = None

    def __post_init__(self) -> None:
        if not self.prompt:
            raise InvalidRequest("prompt", self.prompt, "is empty")
        if self.num_output < 1:
            raise InvalidRequest("num_output", self.num_output, "must be at least 1")

    @classmethod
    def of_lengths(
        cls, number: int, num_prompt: int, num_output: int, *, shared: int = 0, prefix: int = 0, owner: Hashable = None
    ) -> SimulatedRequest:
        """A prompt of made-up tokens, of which the first `shared` are those of all with the same `prefix`, and the rest
        no other `number`'s.

        Raises InvalidRequest where more is shared than there is, or a length is less than 1.
        """
        if not 0 <= shared <= num_prompt:
            raise InvalidRequest("shared", shared, f"must lie between 0 and num_prompt={num_prompt}")
        own = (-2 * number - 2,) * (num_prompt - shared)
        return cls((-2 * prefix - 3,) * shared + own, num_output, owner=owner)
