"""Order: in which order rows that are read together go to the engine.

Rows whose prompts begin alike go one after the other, so that each beginning is computed once while the rest of the
cache belongs to others: in the input's order, beginnings that together exceed the cache push each other out. Rows that
share nothing stay where they are.
"""

from __future__ import annotations

from collections.abc import Sequence

LEAST_SHARED = 128  # characters. Less is two blocks of the cache, which computing again costs next to nothing
LEAST_SHARE = 8  # a beginning also has to be one part in so many of the shorter text


def arranged(beginnings: Sequence[str]) -> list[int]:
    """The places of the texts in the order to compute them: texts that begin alike side by side, each such group where
    its first text was."""
    groups: list[list[int]] = []
    for place in sorted(range(len(beginnings)), key=beginnings.__getitem__):
        if groups and _alike(beginnings[groups[-1][-1]], beginnings[place]):
            groups[-1].append(place)
        else:
            groups.append([place])
    groups.sort(key=min)
    return [place for group in groups for place in group]


def _alike(one: str, other: str) -> bool:
    size = max(LEAST_SHARED, min(len(one), len(other)) // LEAST_SHARE)
    return one[:size] == other[:size]
