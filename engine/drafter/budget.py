"""The budget: how many guessed tokens the next step should verify, and which."""

from __future__ import annotations

from collections.abc import Sequence as Items
from typing import NamedTuple

import numpy as np

from engine.drafter.costs import StepCosts


class Load(NamedTuple):
    """What the next step computes anyway."""

    rows: int  # sequences that get a token from it
    tokens: int  # all that it computes, prompts included


def choose(survivals: Items[Items[float]], load: Load, costs: StepCosts) -> list[int]:
    """How many tokens of each draft to verify, so that the step brings the most tokens per second.

    `survivals[i][j]` is the probability that the first j + 1 tokens of draft i are all accepted. Tokens enter in
    falling order of it, over all drafts; the time that goes to prompts is left out, as it is no part of the bargain.
    (Goodput: Liu et al. 2024, SmartSpec.)
    """
    owners = np.array([i for i, draft in enumerate(survivals) for _ in draft], np.int64)
    if not len(owners):
        return [0] * len(survivals)
    chances = np.array([chance for draft in survivals for chance in draft])
    order = np.argsort(-chances, kind="stable")  # stable: within a draft, of equals the earlier first
    taken = np.arange(len(order) + 1)
    gains = np.concatenate(([0.0], chances[order].cumsum()))
    first = np.zeros(len(order), np.int64)
    first[np.unique(owners[order], return_index=True)[1]] = 1
    drafts = np.concatenate(([0], first.cumsum()))
    alone = np.array([load.rows, load.tokens])
    plain, full = costs.seconds(alone, np.zeros_like(alone))
    seconds = costs.seconds(load.tokens + taken, drafts) - (full - plain)
    best = int(np.argmax((load.rows + gains) / seconds))
    counts = np.bincount(owners[order[:best]], minlength=len(survivals))
    chosen: list[int] = counts.tolist()
    return chosen
