"""FreeText: the part that recipes with a free answer have in common."""

from __future__ import annotations

from collections.abc import Sequence

from worker.recipes.recipe import Answer, Row, Score


class FreeText:
    """No choices, nothing to prepare; the answer is the output."""

    choices: tuple[tuple[int, ...], ...] = ()
    choice_margin: float | None = None
    sample_rows = 0

    def beginning(self, row: Row, text: str) -> str:
        return text

    def read(self, answer: Answer) -> dict[str, object]:
        return {"output": answer.text}

    def prepare(self, sample: Sequence[str], score: Score) -> dict[str, object]:
        return {}
