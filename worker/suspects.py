"""Suspects: how a row that ends the engine or the whole process is found by halving, and set aside.

An attempt that comes after one that died without getting on is careful: it computes its rows in small groups, each with
the engine to itself, and marks a group in the checkpoint before it goes in. A group that was marked and is not finished
killed its attempt. The next attempt halves it, and so on, until a row has died alone twice: that row is an error row.
Once may have been by chance: a lease that was lost, a process that was killed for another reason.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

CAREFUL_ROWS = 32  # of a group while nothing is known
DEATHS = 2  # of a row alone, until it is set aside
MOST_ALONE = 40  # rows of a shard that died alone so often; more, and it is the engine that is broken, not the rows


class EngineBroken(Exception):
    """The engine ends again and again, whatever it is given."""

    code = "engine_failed"

    def __init__(self, num_rows: int) -> None:
        super().__init__(f"the engine ended so often that {num_rows} rows of the shard were tried alone: it is broken")
        self.num_rows = num_rows


@dataclass(frozen=True, slots=True)
class Suspects:
    """`careful`: compute in groups. `groups`: the open rows of each group that died."""

    careful: bool
    groups: tuple[frozenset[int], ...] = ()
    poison: frozenset[int] = field(default_factory=frozenset)

    @classmethod
    def among(cls, open_rows: Sequence[int], begun: Sequence[tuple[int, int]], careful: bool) -> Suspects:
        """`begun`: the range that each attempt marked last. Raises EngineBroken."""
        died = [frozenset(row for row in open_rows if first <= row < stop) for first, stop in begun]
        alone = Counter(first for first, stop in begun if stop - first == 1)
        dead = frozenset(row for row, deaths in alone.items() if deaths >= DEATHS)
        if len(dead) > MOST_ALONE:
            raise EngineBroken(len(dead))
        poison = dead.intersection(open_rows)
        groups = tuple(rows - poison for rows in died if rows - poison)
        return cls(careful or bool(begun), groups, poison)

    def next_group(self, open_rows: Sequence[int]) -> Sequence[int]:
        """The first of these rows that should be computed together, and alone."""
        first = open_rows[0]
        smallest = min((group for group in self.groups if first in group), key=len, default=None)
        if smallest is None:
            others = frozenset().union(*self.groups)
            free = next((place for place, row in enumerate(open_rows) if row in others), len(open_rows))
            return open_rows[: min(free, CAREFUL_ROWS)]
        size = (len(smallest) + 1) // 2
        inside = next((place for place, row in enumerate(open_rows) if row not in smallest), len(open_rows))
        return open_rows[: min(inside, size)]
