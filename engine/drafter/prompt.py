"""PromptDrafter: the text repeats what stands before (prompt lookup, Saxena 2023)."""

from __future__ import annotations

from collections.abc import Hashable
from collections.abc import Sequence as Items

from engine.drafter.drafter import NONE, Context, Guess
from engine.sequence import Sequence

LENGTHS = (3, 2, 1)  # of the runs that are looked for
FARTHEST = 8  # tokens compared to tell a long match from a short one


class PromptDrafter:
    """Finds the latest place in prompt and output that is followed by what the text ends with now, and copies on.

    Kinds: 0 a match of one token, 1 of two, 2 of three, 3 of four to seven, 4 of eight and more.
    """

    name = "prompt"
    costly = False
    priors = (0.15, 0.35, 0.5, 0.65, 0.8)

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
        place, matched = places.find(end)
        if not matched:
            return NONE
        tokens = sequence.tokens
        while matched < len(end) and place > matched and tokens[place - matched - 1] == end[-matched - 1]:
            matched += 1
        kind = 4 if matched >= FARTHEST else min(matched, 4) - 1
        copied = tokens[place : place + context.room]
        return Guess(copied, [kind] * len(copied))


class Places:
    """Where each run of up to three tokens was last followed by another token."""

    __slots__ = ("_after", "_known")

    def __init__(self) -> None:
        self._after: dict[tuple[int, ...], int] = {}
        self._known = 1  # runs that end before this position are in

    def learn(self, tokens: Items[int]) -> None:
        """Take in what was appended since the last call."""
        after = self._after
        for place in range(self._known, len(tokens)):
            for length in LENGTHS:
                if place >= length:
                    after[tuple(tokens[place - length : place])] = place
        self._known = len(tokens)

    def find(self, end: tuple[int, ...]) -> tuple[int, int]:
        """The position of the token that followed the longest run that the text ends with as well, and the run's
        length; length 0: there is none."""
        for length in LENGTHS:
            place = self._after.get(end[-length:])
            if place is not None:
                return place, length
        return 0, 0
