"""Chooser: the next tokens of sequences that need nothing of the host, chosen on the device and kept there.

The next step finds them there (DeviceRows.last), so it can be planned and sent before the host has read them.
"""

from __future__ import annotations

from collections.abc import Sequence as Items
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from engine.batch import Batch
from engine.device_rows import DeviceRows, send
from engine.runner import Runner
from engine.sequence import Sequence
from kernels.gpu.sampling import sample


class Chosen(Protocol):
    """Tokens that are on their way to the host."""

    def read(self) -> list[int]:
        """One token for each row of logits, below 0 where the logits were not numbers. Waits for the device."""
        ...


class Chooser:
    """Draws as GpuChoice does: with the same seed, position and logits the same token."""

    def __init__(self, runner: Runner, rows: DeviceRows) -> None:
        self._runner = runner
        self._rows = rows
        device, num_rows = rows.last.device, len(rows.last)
        self._owners: list[Sequence | None] = [None] * num_rows  # whose parameters the device has
        # temperature, top_p and min_p; top_k and seed
        self._numbers = torch.zeros((num_rows, 3), dtype=torch.float32, device=device)
        self._integers = torch.zeros((num_rows, 2), dtype=torch.int64, device=device)

    @torch.inference_mode()
    def choose(self, hidden: Tensor, batch: Batch) -> Chosen | None:
        """The tokens of a batch with hidden states [R, hidden]. None: some sequence that gets one needs the host."""
        asking = [piece for piece, count in zip(batch.slices, batch.num_logits, strict=True) if count]
        if not asking:
            return _Reading(torch.zeros(0, dtype=torch.int64))
        if any(piece.sequence.draft or not piece.sequence.unaided for piece in asking):
            return None
        device = hidden.device
        # The token to be chosen has the position behind the slice.
        places = np.array([(piece.sequence.row, piece.stop) for piece in asking], np.int64).T
        rows, positions = send(np.ascontiguousarray(places), device)
        if all(piece.sequence.plain for piece in asking):
            most, tokens = self._runner.largest(hidden)
        else:
            self._know([piece.sequence for piece in asking])
            logits = self._runner.logits(hidden)
            most = logits.amax(-1)
            numbers, integers = self._numbers[rows].T.contiguous(), self._integers[rows].T.contiguous()
            temperatures, top_p, min_p = numbers
            tokens = sample(logits, temperatures, integers[0].int(), top_p, min_p, integers[1], positions)
        self._rows.last.index_copy_(0, rows, tokens)
        return _Reading(torch.where(most.isfinite(), tokens, -1))

    def _know(self, sequences: Items[Sequence]) -> None:
        """Let the device have the parameters of these sequences."""
        new = [sequence for sequence in sequences if self._owners[sequence.row] is not sequence]
        if not new:
            return
        for sequence in new:
            self._owners[sequence.row] = sequence
        sampling = [sequence.request.sampling for sequence in new]
        device = self._rows.last.device
        numbers = np.array([(each.temperature, each.top_p, each.min_p) for each in sampling], np.float32)
        integers = np.array(
            [(sequence.row, sequence.request.sampling.top_k, sequence.seed) for sequence in new], np.int64
        )
        sent = send(integers, device)
        self._numbers.index_copy_(0, sent[:, 0], send(numbers, device))
        self._integers.index_copy_(0, sent[:, 0], sent[:, 1:])


class _Reading:
    """A copy to the host, begun behind what computes it."""

    def __init__(self, tokens: Tensor) -> None:
        self._event: torch.cuda.Event | None = None
        self._tokens = tokens
        if tokens.device.type == "cuda":
            self._tokens = torch.empty(tokens.shape, dtype=tokens.dtype, pin_memory=True)
            self._tokens.copy_(tokens, non_blocking=True)
            self._event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._event.record()

    def read(self) -> list[int]:
        if self._event is not None:
            self._event.synchronize()
        tokens: list[int] = self._tokens.tolist()
        return tokens
