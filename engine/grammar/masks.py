"""Masks: what may follow in every structured row of a step, worked out while the model computes the step."""

from __future__ import annotations

import time
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from engine.batch import Batch
from engine.choice import Choice, TorchChoice
from engine.grammar.grammar import Backend, Bitmask, Fill


@dataclass(frozen=True, slots=True)
class RowMasks:
    """Masks of some rows of logits."""

    rows: list[int]  # in rising order
    mask: Bitmask  # [rows, words]
    choice: Choice

    def apply(self, logits: Tensor) -> None:
        """Rule tokens out of logits [R, vocab], in place."""
        rows = torch.tensor(self.rows, device=logits.device)
        self.choice.apply_token_bitmask(logits, rows, self.on(logits.device))

    def on(self, device: torch.device) -> Tensor:
        return torch.from_numpy(self.mask).to(device)

    def of_rows(self, count: int, device: torch.device) -> Tensor:
        """For each of `count` rows of logits its place in the masks, -1 where it has none: [count] int32."""
        places = np.full(count, -1, np.int32)
        places[self.rows] = np.arange(len(self.rows))
        return torch.from_numpy(places).to(device)


@dataclass(frozen=True, slots=True)
class Pending:
    """Masks that are being filled."""

    masks: RowMasks
    done: Future[float]

    def wait(self) -> tuple[RowMasks, float]:
        """The masks, and the seconds that filling them took."""
        seconds = self.done.result()
        return self.masks, seconds


class Masks:
    """Fills the masks of a batch in a thread of its own: the library works without the interpreter's lock.

    The masks of a step follow from the tokens before it and the drafts in it, which are known when it begins.
    """

    def __init__(self, backend: Backend, vocab_size: int, choice: Choice | None = None) -> None:
        """`choice`: PyTorch's if none is given."""
        self._choice: Choice = choice or TorchChoice()
        self._backend = backend
        self._words = -(-vocab_size // 32)
        self._buffer: Bitmask = np.empty((0, self._words), np.int32)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="masks")

    def start(self, batch: Batch) -> Pending | None:
        """Begin to fill the masks of all rows of logits that a batch will have for sequences with a grammar.

        None: there are none. The next call may only come once the result has been used.
        """
        fills: list[Fill] = []
        rows: list[int] = []
        index = 0
        for piece in batch.slices:
            count = piece.num_logits
            grammar = piece.sequence.grammar
            if count and grammar is not None:
                fills.append(Fill(grammar, len(rows), piece.sequence.draft[: count - 1]))
                rows.extend(range(index, index + count))
            index += count
        if not fills:
            return None
        if len(rows) > len(self._buffer):
            self._buffer = np.empty((2 * len(rows), self._words), np.int32)
        mask = self._buffer[: len(rows)]
        return Pending(RowMasks(rows, mask, self._choice), self._thread.submit(self._fill, fills, mask))

    def close(self) -> None:
        self._thread.shutdown()

    def _fill(self, fills: list[Fill], mask: Bitmask) -> float:
        start = time.perf_counter()
        self._backend.fill(fills, mask)
        return time.perf_counter() - start
