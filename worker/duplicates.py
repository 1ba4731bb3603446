"""How many rows of a job are computed, from the runs of neighbours that were read: equal ones are computed once.

A row that was seen in many runs is everywhere, and adds nothing beyond what was read. Of the others, how often one came
back in another run says how many of them there are: with D of them, all as frequent, n draws find
D (1 - exp(-n / D)) different ones. Counted are runs, not rows, as equal neighbours (a sorted input) say nothing about
rows that lie elsewhere.
"""

from __future__ import annotations

import math
from collections import Counter

from worker.frame import Frame
from worker.intervals import Estimate

EVERYWHERE = 5  # runs
ROUNDS = 60


def computed_rows(frame: Frame, reuse: bool) -> Estimate:
    """Rows of the job that the engine is asked for."""
    scale = frame.num_rows / max(len(frame.rows), 1)
    asked = [[row for row in run if row.asking is not None] for run in frame.runs]
    if not reuse:
        return Estimate(scale * sum(map(len, asked)))
    alone = scale * sum(row.key is None for run in asked for row in run)
    runs = Counter(key for run in asked for key in {row.key for row in run if row.key is not None})
    everywhere = sum(count >= EVERYWHERE for count in runs.values())
    others = [count for count in runs.values() if count < EVERYWHERE]
    if frame.whole or not others:
        return Estimate(alone + len(runs))
    draws, repeats = sum(others), sum(others) - len(others)
    found = _different(draws, repeats, scale)
    # The repeats are few, and their number is a Poisson variable's.
    error = abs(_different(draws, repeats + math.sqrt(repeats + 1), scale) - found)
    return Estimate(alone + everywhere + found, error)


def _different(draws: int, repeats: float, scale: float) -> float:
    """Different ones among `scale` times as many draws, where so many draws had so many repeats."""
    if not repeats:
        return scale * draws
    low, high = 0.0, draws / repeats * draws  # of D; with the latter there are half as many repeats
    for _ in range(ROUNDS):
        middle = (low + high) / 2
        enough = draws - _seen(middle, draws) > repeats
        low, high = (middle, high) if enough else (low, middle)
    return min(_seen(high, scale * draws), scale * draws)


def _seen(different: float, draws: float) -> float:
    return -different * math.expm1(-draws / different) if different else 0.0
