"""Drafter: guesses how an output goes on, so that one step can verify several tokens."""

from __future__ import annotations

from collections.abc import Sequence as Items
from typing import Protocol

from engine.sequence import Sequence


class Drafter(Protocol):
    """Right or wrong, a draft never changes an output; it only changes how many steps the output takes."""

    def propose(self, sequences: Items[Sequence]) -> Items[Items[int]]:
        """A draft for each of these sequences, which have settled a step and none of which scores choices.

        An empty draft means none. Tokens beyond a sequence's `draft_room` are cut off.
        """
        ...
