"""Steps that are computed for their time or their memory alone."""

from __future__ import annotations

import numpy as np

from engine.step import Step


def probe(num_slices: int, length: int, context: int, block_size: int, *, logits: bool = True) -> Step:
    """Slices of `length` tokens at the end of a context, which all share the first blocks of the cache and write
    there: nothing of use may be in them. `logits`: of every token, else of the last ones alone."""
    width = -(-context // block_size)
    starts = np.arange(0, num_slices * length + 1, length, dtype=np.int32)
    return Step(
        query_starts=starts,
        context_lengths=np.full(num_slices, context, np.int32),
        owned=np.full(num_slices, context - length + 1 if logits else context, np.int32),
        logit_starts=starts if logits else np.arange(num_slices + 1, dtype=np.int32),
        tokens=np.zeros(num_slices * length, np.int32),
        rows=np.arange(num_slices, dtype=np.int32),
        block_tables=np.tile(np.arange(width, dtype=np.int32), (num_slices, 1)),
    )
