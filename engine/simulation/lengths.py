"""Lengths: how long prompts or outputs are, in tokens. No torch here."""

from __future__ import annotations

import bisect
import itertools
import random
from collections.abc import Sequence as Items
from dataclasses import dataclass

from engine.errors import InvalidRequest


@dataclass(frozen=True, slots=True)
class Lengths:
    """Points of a distribution, (per cent of rows, tokens that they have at most), rising in both; straight lines
    between them, and nothing beyond the first and the last."""

    points: tuple[tuple[float, float], ...]

    @classmethod
    def parse(cls, text: str, option: str) -> Lengths:
        """`512` (all alike), or per cents as in `0:50,50:300,90:800,100:2000`. Raises InvalidRequest, which names the
        option."""
        try:
            pairs = [tuple(float(part) for part in pair.split(":")) for pair in text.split(",")]
            points = tuple((pair[0], pair[1]) if len(pair) > 1 else (50.0, pair[0]) for pair in pairs)
        except ValueError:
            raise InvalidRequest(option, text, "must be a number of tokens, or like 50:300,90:800") from None
        rising = all(a[0] < b[0] and a[1] <= b[1] for a, b in itertools.pairwise(points))
        whole = len(points) == 1 or all(len(pair) == 2 for pair in pairs)
        if not rising or not whole or any(not 0 <= share <= 100 or not 1 <= tokens < 1e9 for share, tokens in points):
            reason = "must be per cents from 0 to 100 and at least 1 token at each, both rising"
            raise InvalidRequest(option, text, reason)
        return cls(points)

    @classmethod
    def of(cls, values: Items[int]) -> Lengths:
        """Of rows that are there: at least one, each of at least one token."""
        ordered = sorted(values)
        last = max(len(ordered) - 1, 1)
        return cls(tuple((100 * place / last, float(value)) for place, value in enumerate(ordered)))

    def draw(self, dice: random.Random) -> int:
        """The length of some row."""
        share = 100 * dice.random()
        place = bisect.bisect_left(self.points, (share, 0.0))
        if place == 0:
            return round(self.points[0][1])
        if place == len(self.points):
            return round(self.points[-1][1])
        (before, least), (after, most) = self.points[place - 1], self.points[place]
        return round(least + (most - least) * (share - before) / (after - before))
