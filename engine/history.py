"""History: which tokens a sequence has seen and how often, as the sampling penalties need it. No torch here."""

from __future__ import annotations

from array import array
from collections.abc import Iterable


class History:
    """The distinct tokens of prompt and output, and how often each stands in the output.

    Kept as two flat arrays that grow by one token at a time, so that a step copies them without looping over tokens.
    """

    __slots__ = ("_places", "counts", "ids")

    def __init__(self, prompt: Iterable[int]) -> None:
        self.ids = array("q", dict.fromkeys(prompt))
        self.counts = array("q", bytes(8 * len(self.ids)))  # in the output; 0: only in the prompt
        self._places = {token: place for place, token in enumerate(self.ids)}

    def add(self, token: int) -> None:
        """The token was put out."""
        place = self._places.get(token)
        if place is None:
            self._places[token] = len(self.ids)
            self.ids.append(token)
            self.counts.append(1)
        else:
            self.counts[place] += 1

    def undo(self, token: int, *, new: bool) -> None:
        """Take back the last `add`; `new` tells whether that add brought the token in."""
        place = self._places[token]
        if new:
            assert place == len(self.ids) - 1, "only the last addition can be undone"
            del self._places[token], self.ids[place:], self.counts[place:]
        else:
            self.counts[place] -= 1

    def __contains__(self, token: int) -> bool:
        return token in self._places
