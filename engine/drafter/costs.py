"""StepCosts: how long a step takes, by what it computes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class StepCosts:
    """Seconds of a step of so many tokens, each with logits: measured points, straight lines between them and beyond.

    `per_draft` is what every slice costs more for being of several tokens instead of one.
    """

    points: tuple[tuple[int, float], ...]  # (tokens, seconds), rising in both
    per_draft: float = 0.0

    def seconds(self, tokens: NDArray[np.int64], drafts: NDArray[np.int64]) -> NDArray[np.float64]:
        """Of steps with so many tokens, in so many slices with a draft."""
        counts, seconds = zip(*self.points, strict=True)
        within = np.interp(tokens, counts, seconds)
        slope = (seconds[-1] - seconds[-2]) / (counts[-1] - counts[-2]) if len(counts) > 1 else 0.0
        total: NDArray[np.float64] = within + slope * np.maximum(tokens - counts[-1], 0) + self.per_draft * drafts
        return total
