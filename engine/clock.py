"""Clock: where a step's time goes."""

from __future__ import annotations

import time
from collections.abc import Mapping
from types import MappingProxyType

# In the order of the loop. Whatever is none of these lies between two steps.
PARTS = ("schedule", "inputs", "model", "masks", "sample", "settle", "draft", "output")


class Clock:
    """Adds up the wall time of a step's parts. Costs a tenth of a microsecond per part, so it always runs."""

    def __init__(self) -> None:
        self._seconds = dict.fromkeys(PARTS, 0.0)
        self._last = 0.0

    @property
    def seconds(self) -> Mapping[str, float]:
        """By part, since the clock was made."""
        return MappingProxyType(self._seconds)

    def start(self) -> None:
        """A step begins: what lies between the last one and this is nobody's."""
        self._last = time.perf_counter()

    def lap(self, part: str) -> None:
        """What lies between the last call and this was `part`."""
        now = time.perf_counter()
        self._seconds[part] += now - self._last
        self._last = now
