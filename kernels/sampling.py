"""What is done to logits before a token is chosen."""

from __future__ import annotations

import functools

import numpy as np
import torch
from torch import Tensor

ROWS = 64  # rows taken together on a device: bounds the temporary memory


def most_probable(logits: Tensor) -> tuple[Tensor, Tensor]:
    """The largest of each row of logits [R, vocab], and the first place of it -> [R] fp32, [R] int64.

    Where a row holds a NaN, that is its largest.
    """
    if logits.device.type != "cpu" or not len(logits):
        values, tokens = logits.max(dim=-1)
        return values, tokens
    # NumPy finds a place with vector instructions, torch number by number: 13 times the time at 64 rows of 49,152.
    tokens = torch.from_numpy(logits.numpy().argmax(-1))
    return logits.gather(-1, tokens[:, None])[:, 0], tokens


def apply_token_bitmask(logits: Tensor, rows: Tensor, mask: Tensor) -> None:
    """reference.apply_token_bitmask, in place: logits [R, vocab] at rows [N] under mask [N, words] int32."""
    if logits.device.type == "cpu":
        _touch_the_fewer(logits.numpy(), rows.tolist(), mask.numpy())
    else:
        add_bitmask_bias(logits, rows, mask)


def add_bitmask_bias(logits: Tensor, rows: Tensor, mask: Tensor) -> None:
    """The same in whole-tensor operations, for devices."""
    table = _bytes_as_bias(logits.device)
    for start in range(0, rows.shape[0], ROWS):
        part = slice(start, start + ROWS)
        octets = mask[part].contiguous().view(torch.uint8).to(torch.int32)  # [n, 4 * words], little-endian
        bias = torch.nn.functional.embedding(octets, table).flatten(1)[:, : logits.shape[1]]
        logits.index_add_(0, rows[part], bias)


def _touch_the_fewer(logits: np.ndarray, rows: list[int], mask: np.ndarray) -> None:
    """Row by row, in one thread: most masks allow nearly all tokens or nearly none, and the fewer are listed.

    Many times as fast as arithmetic on all logits, and it does not take the cores from who fills the next masks.
    """
    for row, allowed in zip(rows, mask, strict=True):
        line = logits[row]
        forbidden = ~allowed
        if np.count_nonzero(allowed) < np.count_nonzero(forbidden):
            kept = _tokens(allowed, len(line))
            values = line[kept]
            line.fill(-np.inf)
            line[kept] = values
        else:
            line[_tokens(forbidden, len(line))] = -np.inf


def _tokens(words: np.ndarray, vocab: int) -> np.ndarray:
    """The tokens whose bits are set in words [words] int32, below `vocab`."""
    places = np.flatnonzero(words)
    bits = np.flatnonzero(np.unpackbits(words[places].view(np.uint8), bitorder="little").view(bool))
    tokens: np.ndarray = places[bits >> 5] * 32 + (bits & 31)
    return tokens[tokens < vocab] if vocab % 32 else tokens


@functools.cache
def _bytes_as_bias(device: torch.device) -> Tensor:
    """For every byte, what its bits add to eight logits [256, 8]: 0 where set and -inf where not. One look-up per byte
    replaces work bit by bit."""
    bits = (torch.arange(256, device=device)[:, None] >> torch.arange(8, device=device)) & 1
    return torch.zeros(256, 8, device=device).masked_fill_(bits == 0, -torch.inf)
