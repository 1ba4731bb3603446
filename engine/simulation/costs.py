"""StepCost: how long steps take, by what they compute. No torch here."""

from __future__ import annotations

from collections.abc import Sequence as Items
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from engine.work import Work

FEATURES = ("step", *Work._fields)
REFITTED, LEAST_FITTED = 3, 0.1  # rounds, and the share of a step's time below which it weighs no more
REWEIGHTED, LEAST_ERROR = 50, 1e-3  # rounds, and the relative error below which a step weighs no more
ROUNDS = 200  # of removing features whose coefficient would be negative; each removes or frees at least one


class StepCost(Protocol):
    """Seconds of a step, or of several that are alike."""

    def seconds(self, work: Work, steps: int = 1) -> float:
        """Of `steps` steps whose work is `work` together, alike but for the lengths of their contexts."""
        ...


@dataclass(frozen=True, slots=True)
class FittedCost:
    """A price for every step and for each of its numbers, from measured steps: see `fit`."""

    prices: tuple[float, ...]  # seconds, in the order of FEATURES; none is negative
    error: float  # what the fit leaves of the measured steps: the mean of |fitted - measured| / measured

    def seconds(self, work: Work, steps: int = 1) -> float:
        step, tokens, sequences, context, attended, rows = self.prices
        return (
            step * steps
            + tokens * work.tokens
            + sequences * work.sequences
            + context * work.context
            + attended * work.attended
            + rows * work.rows
        )

    def parts(self, work: Work, steps: int = 1) -> dict[str, float]:
        """Seconds by what they are spent on."""
        step, tokens, sequences, context, attended, rows = self.prices
        return {
            "steps": step * steps + sequences * work.sequences,
            "products": tokens * work.tokens,
            "attention": context * work.context + attended * work.attended,
            "head": rows * work.rows,
        }


def fit(works: Items[Work], seconds: Items[float]) -> FittedCost:
    """The prices that explain measured steps best: least squares of the relative errors, so that short steps count as
    much as long ones, with no price below zero (Lawson and Hanson 1974, algorithm NNLS).

    Errors are relative to the fitted times (least squares reweighted by what was fitted: Carroll and Ruppert 1988,
    chapter 2). Relative to the measured ones, a step that came out fast would count for more than one that came out
    slow, and prices would be too low by about twice the square of the times' spread.

    Raises ValueError where there are no steps, or one of them took no time.
    """
    if not works or len(works) != len(seconds):
        raise ValueError(f"{len(works)} steps and {len(seconds)} times: as many of both are needed, and at least one")
    if not min(seconds) > 0:
        raise ValueError(f"a step of {min(seconds)} s: every measured step takes some time")
    matrix, scale = _relative(works, seconds)
    prices = non_negative(matrix, np.ones(len(matrix)))
    for _ in range(REFITTED):
        weights = 1 / np.maximum(matrix @ prices, LEAST_FITTED)  # measured over fitted
        prices = non_negative(matrix * weights[:, None], weights)
    return _cost(prices, matrix, scale)


def fit_most(works: Items[Work], seconds: Items[float]) -> FittedCost:
    """As `fit`, but with the least sum of absolute relative errors: steps that something disturbed count no more than
    others, and prices follow the ones that agree (least squares reweighted by the errors that they left: Schlossmacher
    1973)."""
    start = fit(works, seconds)
    matrix, scale = _relative(works, seconds)
    prices = np.array(start.prices) * scale
    for _ in range(REWEIGHTED):
        weights = 1 / np.sqrt(np.maximum(np.abs(matrix @ prices - 1), LEAST_ERROR))
        prices = non_negative(matrix * weights[:, None], weights)
    return _cost(prices, matrix, scale)


def _relative(works: Items[Work], seconds: Items[float]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The steps' features over their seconds, a row each, and the scale that was taken out of every feature."""
    features = np.array([(1, *work) for work in works], float)
    scale = np.maximum(features.max(axis=0), 1.0)
    return features / scale / np.array(seconds)[:, None], scale


def _cost(prices: NDArray[np.float64], matrix: NDArray[np.float64], scale: NDArray[np.float64]) -> FittedCost:
    return FittedCost(tuple(float(price) for price in prices / scale), float(np.abs(matrix @ prices - 1).mean()))


def non_negative(matrix: NDArray[np.float64], target: NDArray[np.float64]) -> NDArray[np.float64]:
    """The x >= 0 for which |matrix x - target| is least (NNLS)."""
    used = np.zeros(matrix.shape[1], bool)
    found = np.zeros(matrix.shape[1])
    for _ in range(ROUNDS):
        gains = matrix.T @ (target - matrix @ found)
        gains[used] = -np.inf
        best = int(np.argmax(gains))
        if gains[best] <= 1e-9:
            break
        used[best] = True
        while True:
            wanted = np.zeros_like(found)
            wanted[used] = np.linalg.lstsq(matrix[:, used], target, rcond=None)[0]
            negative = used & (wanted <= 0)
            if not negative.any():
                found = wanted
                break
            # As far towards the wanted prices as all stay at least 0; those that reach it are out.
            share = float((found[negative] / (found[negative] - wanted[negative])).min())
            found = found + share * (wanted - found)
            used &= found > 1e-15
            found[~used] = 0.0
    return found
