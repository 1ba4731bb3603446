"""summarize: one text -> a summary."""

from __future__ import annotations

from db.specs import Summarize
from worker.recipes.free_text import FreeText
from worker.recipes.recipe import Answer, Message, Row, text_of

INSTRUCTION = "Summarize the text in at most {max_words} words. Write the summary only."
TOKENS_PER_WORD = 1.6  # English in vocabularies of 32k to 150k takes 1.2 to 1.5; the rest is room to end the sentence


class SummarizeRecipe(FreeText):
    def __init__(self, spec: Summarize) -> None:
        self._column = spec.column
        self._instruction = spec.instruction or INSTRUCTION.format(max_words=spec.max_words)
        self.default_max_tokens = int(spec.max_words * TOKENS_PER_WORD) + 16

    def text(self, row: Row) -> str:
        return text_of(row, self._column)

    def messages(self, row: Row, text: str) -> list[Message]:
        return [{"role": "system", "content": self._instruction}, {"role": "user", "content": text}]

    def read(self, answer: Answer) -> dict[str, object]:
        return {"output": answer.text.strip()}
