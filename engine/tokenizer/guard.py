"""Guard: keeps the text of control tokens inside a user's text from becoming control tokens.

A chat template mixes its own markup with the user's text, and afterwards they look alike. So the user's text is marked
beforehand: an invisible mark behind the first character of every control token's text breaks it. Whatever still reads
as a control token after rendering is the template's own.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable

from engine.errors import InvalidRequest

# Private-use characters: no text means anything by them, and one that a text does not hold can always be found.
MARKS = (range(0xE000, 0xF900), range(0xF0000, 0xFFFFE))


class Guard:
    """Marks texts against a set of literals."""

    def __init__(self, literals: Collection[str]) -> None:
        # Longest first, as alternatives are tried in order.
        ordered = sorted(literals, key=len, reverse=True)
        alternatives = "|".join(map(re.escape, ordered))
        self._any = re.compile(alternatives) if ordered else re.compile("(?!)")
        self._first = re.compile(f"(?=(?:{alternatives}))(.)", re.DOTALL) if ordered else self._any
        self._split = re.compile(f"({alternatives})") if ordered else self._any
        self._longest = max(map(len, ordered), default=0)
        # A literal could also come about where two texts meet.
        self._heads = frozenset(text[:cut] for text in ordered for cut in range(1, len(text)))
        self._tails = frozenset(text[cut:] for text in ordered for cut in range(1, len(text)))

    def threatened(self, text: str) -> bool:
        """Whether the text holds a literal, or a part of one at an edge."""
        return self._any.search(text) is not None or self._has_head(text) or self._has_tail(text)

    def mark(self, text: str, mark: str) -> str:
        """Break every literal in the text, and every one that a neighbouring text could complete."""
        marked = self._first.sub(rf"\g<1>{mark}", text)
        return (mark if self._has_tail(text) else "") + marked + (mark if self._has_head(text) else "")

    def split(self, text: str) -> list[str]:
        """Cut at the literals: texts at even places, literals at odd ones."""
        return self._split.split(text)

    def _has_head(self, text: str) -> bool:
        return any(text[-length:] in self._heads for length in range(1, min(self._longest, len(text) + 1)))

    def _has_tail(self, text: str) -> bool:
        return any(text[:length] in self._tails for length in range(1, min(self._longest, len(text) + 1)))


def free_mark(texts: Iterable[str]) -> str:
    """A character that none of the texts holds."""
    used = set().union(*texts)
    for code in (code for codes in MARKS for code in codes):
        if chr(code) not in used:
            return chr(code)
    raise InvalidRequest("messages", "…", "use every private-use character of Unicode")
