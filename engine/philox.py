"""Uniform random numbers as a pure function of (seed, position): Philox 4x32-10 (Salmon et al., SC 2011).

Nothing is drawn from a shared stream, so what a request gets does not depend on the batch that it rides in.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Words = NDArray[np.uint64]  # every element below 2^32

_LOW = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)
_MULTIPLIERS = (np.uint64(0xD2511F53), np.uint64(0xCD9E8D57))
_WEYL = (np.uint64(0x9E3779B9), np.uint64(0xBB67AE85))
_ROUNDS = 10


def philox(counter: tuple[Words, Words, Words, Words], key: tuple[Words, Words]) -> tuple[Words, Words, Words, Words]:
    """The block of four random words that belongs to a counter under a key; element by element."""
    x0, x1, x2, x3 = counter
    k0, k1 = key
    for _ in range(_ROUNDS):
        first, second = x0 * _MULTIPLIERS[0], x2 * _MULTIPLIERS[1]
        x0, x1, x2, x3 = (second >> _HALF) ^ x1 ^ k0, second & _LOW, (first >> _HALF) ^ x3 ^ k1, first & _LOW
        k0, k1 = (k0 + _WEYL[0]) & _LOW, (k1 + _WEYL[1]) & _LOW
    return x0, x1, x2, x3


# What a number is for. Different streams are independent of one another.
CHOICE, DRAFT, ACCEPTANCE, RESIDUAL = range(4)


def uniform(seeds: NDArray[np.uint64], positions: NDArray[np.uint64], stream: int = CHOICE) -> NDArray[np.float64]:
    """One number in [0, 1) with 53 random bits for each (seed, position), in a stream."""
    streams = np.full_like(positions, stream)
    counter = (positions & _LOW, positions >> _HALF, streams, np.zeros_like(positions))
    high, low, _, _ = philox(counter, (seeds & _LOW, seeds >> _HALF))
    bits = (high << np.uint64(21)) | (low >> np.uint64(11))
    return bits.astype(np.float64) * 2.0**-53
