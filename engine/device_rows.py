"""DeviceRows: what a GPU keeps of the sequences that run, so that a step has little to send."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


class DeviceRows:
    """A row for each running sequence, the same from its admission to its end (Sequence.row): its block table, and the
    token that was chosen for it last."""

    def __init__(self, num_rows: int, most_blocks: int, device: torch.device) -> None:
        self.last = torch.zeros(num_rows, dtype=torch.int64, device=device)
        self._tables = torch.zeros((num_rows, most_blocks), dtype=torch.int32, device=device)
        self._there = np.zeros((num_rows, most_blocks), np.int32)  # what _tables holds

    def update(self, rows: NDArray[np.int32], tables: NDArray[np.int32]) -> None:
        """Let these rows have these block tables [S, most blocks of the step]. Only what has changed is sent."""
        assert rows.min() >= 0, "only sequences with rows are computed"
        lines, columns = np.nonzero(tables != self._there[rows, : tables.shape[1]])
        if len(lines):
            values = tables[lines, columns]
            self._there[rows[lines], columns] = values
            places = rows[lines].astype(np.int64) * self._there.shape[1] + columns
            sent = send(np.stack((places, values)), self._tables.device)
            self._tables.view(-1).index_copy_(0, sent[0], sent[1].int())

    def tables(self, rows: Tensor) -> Tensor:
        """The block tables of rows [S] -> [S, most blocks] int32."""
        return self._tables.index_select(0, rows)


def send(values: NDArray[Any], device: torch.device) -> Tensor:
    """A copy on the device, without waiting for it."""
    staged = torch.from_numpy(values)
    return staged.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else staged
