"""SimulatedRequest: a request whose answer is known to be so long. No torch here."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

from engine.errors import InvalidRequest

OUTPUTS = 1 << 20  # made-up tokens of outputs begin here, one for each request: no tokenizer's ids reach it


@dataclass(frozen=True, slots=True)
class Drafts:
    """Speculation as it was measured in the steps of an answer, the first of which ends its prompt: how many guessed
    tokens each verified, and how many of them the model agreed with. A longer answer goes through them again."""

    steps: tuple[tuple[int, int], ...]

    def __post_init__(self) -> None:
        if not self.steps or not all(0 <= accepted <= verified for verified, accepted in self.steps):
            raise InvalidRequest(
                "steps", self.steps, "must be pairs (verified, accepted) with 0 <= accepted <= verified"
            )

    def at(self, step: int) -> tuple[int, int]:
        """Tokens verified and agreed with in a sequence's step 0, 1, ..."""
        return self.steps[step % len(self.steps)]


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
