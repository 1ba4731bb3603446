"""FreeText: the part that recipes with a free answer have in common."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from worker.recipes.recipe import Score


class FreeText:
    """No choices, no columns of its own, nothing to prepare; the answer is the output."""

    choices: tuple[tuple[int, ...], ...] = ()
    fields: tuple[pa.Field[Any], ...] = ()
    sample_rows = 0

    def read(self, text: str, choice_logprobs: tuple[float, ...] | None) -> dict[str, object]:
        return {"output": text}

    def prepare(self, sample: Sequence[str], score: Score) -> dict[str, object]:
        return {}
