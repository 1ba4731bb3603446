"""PromptDrafter: the text repeats what stands before (prompt lookup, Saxena 2023)."""

from __future__ import annotations

from collections.abc import Hashable
from collections.abc import Sequence as Items

from engine.drafter.drafter import NONE, Context, Guess
from engine.sequence import Sequence

LONG, SHORT = 3, 2  # tokens that must match
FARTHEST = 8  # tokens compared to tell a long match from a short one


class PromptDrafter:
    """Finds the latest place in prompt and output that is followed by what the text ends with now, and copies on.

    Kinds: 0 a match of two tokens, 1 of three, 2 of four to seven, 3 of eight and more.
    """

    name = "prompt"
    priors = (0.3, 0.5, 0.65, 0.8)

    def __init__(self) -> None:
        self._places: dict[Hashable, Places] = {}  # by request id

    def guess(self, contexts: Items[Context]) -> list[Guess]:
        return [self._guess(context) for context in contexts]

    def finish(self, sequence: Sequence) -> None:
        self._places.pop(sequence.request.id, None)

    def _guess(self, context: Context) -> Guess:
        sequence = context.sequence
        places = self._places.get(sequence.request.id)
        if places is None:
            places = self._places[sequence.request.id] = Places()
        places.learn(sequence.tokens)
        end = context.last(FARTHEST)
        place = places.find(end)
        if place is None:
            return NONE
        matched = SHORT
        tokens = sequence.tokens
        while matched < len(end) and place > matched and tokens[place - matched - 1] == end[-matched - 1]:
            matched += 1
        kind = 3 if matched >= FARTHEST else 2 if matched > LONG else matched - SHORT
        copied = tokens[place : place + context.room]
        return Guess(copied, [kind] * len(copied))


class Places:
    """Where each run of two or three tokens was last followed by another token."""

    __slots__ = ("_after", "_known")

    def __init__(self) -> None:
        self._after: dict[tuple[int, ...], int] = {}
        self._known = SHORT  # runs that end before this position are in

    def learn(self, tokens: Items[int]) -> None:
        """Take in what was appended since the last call."""
        after = self._after
        for place in range(self._known, len(tokens)):
            after[tokens[place - 2], tokens[place - 1]] = place
            if place >= LONG:
                after[tokens[place - 3], tokens[place - 2], tokens[place - 1]] = place
        self._known = max(len(tokens), SHORT)

    def find(self, end: tuple[int, ...]) -> int | None:
        """The position of the token that followed the same ending, the longer run first."""
        place = self._after.get(end[-LONG:])
        return self._after.get(end[-SHORT:]) if place is None else place
