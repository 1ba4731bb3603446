"""What the engine needs from a grammar library: the state of one output, and all that is done for many at once."""

from __future__ import annotations

from collections.abc import Sequence as Items
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from engine.format import Format

Bitmask = NDArray[np.int32]  # [rows, ceil(vocab / 32)]: bit t % 32 of word t // 32 is token t, set where it may follow


class Grammar(Protocol):
    """How far one output has come in its format. End-of-sequence tokens are allowed by masks and never accepted."""

    @property
    def finished(self) -> bool:
        """Whether the output is whole and no token but the end may follow."""
        ...

    @property
    def error(self) -> str:
        """Why the state is of no more use (a resource limit of the library); or empty."""
        ...

    def accept(self, tokens: Items[int]) -> int:
        """More of the output, as far as it fits. Returns how many tokens that is."""
        ...

    def rollback(self, count: int) -> None:
        """Forget the last `count` accepted tokens."""
        ...

    def forced(self) -> list[int]:
        """The tokens that must follow, as the tokenizer would cut their text: none where a longer token could cover
        text that is not forced too."""
        ...

    def forced_text(self) -> bytes:
        """The bytes that must follow."""
        ...


class Fill(NamedTuple):
    """Masks wanted of one output: rows [row, row + 1 + len(draft)), after each beginning of the draft."""

    grammar: Grammar
    row: int
    draft: list[int]  # all of it valid


class Backend(Protocol):
    """Compiles formats and fills masks."""

    def check(self, format: Format) -> None:
        """Raises UnsupportedFormat when it cannot be compiled or has a keyword that cannot be enforced."""
        ...

    def start(self, format: Format) -> Grammar:
        """The state of an output of no tokens. Raises UnsupportedFormat."""
        ...

    def fill(self, fills: Items[Fill], mask: Bitmask) -> None:
        """Fill the wanted rows of `mask`, with several threads and without the interpreter's lock."""
        ...

    def tokens_of(self, text: bytes) -> list[int]:
        """The tokens that a text is cut into."""
        ...
