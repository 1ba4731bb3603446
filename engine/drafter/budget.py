"""The budget: how many guessed tokens the next step should verify, and which."""

from __future__ import annotations

from collections.abc import Sequence as Items
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from engine.drafter.costs import StepCosts

URGENCY = 16.0  # how sharply the rows with the most before them are preferred


class Load(NamedTuple):
    """What the next step computes anyway, and who else is there."""

    rows: int  # sequences that get a token from it
    tokens: int  # all that it computes, prompts included
    # Tokens that each of the other sequences may still bring, where none of them waits for the place of a row that
    # ends; None: some do.
    others: Items[int] | None = None
    alone: bool = False  # a device has nothing to do until there are guesses


def weigh(remaining: Items[int], load: Load) -> list[float]:
    """How much an accepted token of each row shortens the work, at most 1 on average.

    It is the same for all while other rows wait for the place. After that the steps go on until the last row ends, so
    what counts is to bring on the rows with the most still before them: `remaining` tokens each, at most.
    """
    if load.others is None:
        return [1.0] * len(remaining)
    most = max(*remaining, *load.others, 1)
    shares = [(tokens / most) ** URGENCY for tokens in remaining]
    total = sum(shares) + sum((tokens / most) ** URGENCY for tokens in load.others)
    return [load.rows * share / total for share in shares]


class Chosen(NamedTuple):
    """How many tokens of each draft to verify, and the seconds that this is expected to save."""

    counts: list[int]
    saved: float


def choose(survivals: Items[Items[float]], weights: Items[float], load: Load, costs: StepCosts) -> Chosen:
    """How many tokens of each draft to verify, so that the most time is saved.

    `survivals[i][j]` is the probability that the first j + 1 tokens of draft i are all accepted, `weights[i]` what
    `weigh` says of its row. An accepted token saves a later step the cost of its row, and its part of what a step costs
    whatever its size. Verifying costs what it adds to the next step. (Goodput: Liu et al. 2024, SmartSpec.)
    """
    owners = np.array([i for i, draft in enumerate(survivals) for _ in draft], np.int64)
    if not len(owners):
        return Chosen([0] * len(survivals), 0.0)
    chances = np.array([chance for draft in survivals for chance in draft])
    gains = chances * _values(weights, load, costs)[owners]
    order = np.argsort(-gains, kind="stable")  # stable: within a draft, of equals the earlier first
    first = np.zeros(len(order), np.int64)
    first[np.unique(owners[order], return_index=True)[1]] = 1
    drafts = np.concatenate(([0], first.cumsum()))
    seconds = costs.seconds(load.tokens + np.arange(len(order) + 1), drafts)
    saved = np.concatenate(([0.0], gains[order].cumsum())) - (seconds - seconds[0])
    best = int(np.argmax(saved))
    counts: list[int] = np.bincount(owners[order[:best]], minlength=len(survivals)).tolist()
    return Chosen(counts, float(saved[best]))


def _values(weights: Items[float], load: Load, costs: StepCosts) -> NDArray[np.float64]:
    """Seconds that an accepted token of each row saves."""
    sizes = np.array([load.rows, load.rows // 2])
    whole, half = costs.seconds(sizes, np.zeros_like(sizes))
    row = (whole - half) / (load.rows - load.rows // 2) if load.rows > 1 else 0.0
    values: NDArray[np.float64] = row + (whole / load.rows - row) * np.array(weights)
    return values
