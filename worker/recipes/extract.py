"""extract: one text -> JSON of a schema, and one typed column per property of the job's schema."""

from __future__ import annotations

import json

from db.specs import Extract
from db.typed_columns import NoCell, cell, typed
from worker.recipes.free_text import FreeText
from worker.recipes.recipe import Answer, AnswerRefused, Message, Row, text_of

INSTRUCTION = "Read the text and answer with what it says, as JSON of this JSON Schema, and nothing else."


class ExtractRecipe(FreeText):
    default_max_tokens = 512

    def __init__(self, spec: Extract) -> None:
        self._column = spec.column
        self._instruction = spec.instruction or INSTRUCTION
        # Shown to the model as the client wrote it, in one line: fewer tokens, and the same in every row.
        self._schema = json.dumps(spec.json_schema, ensure_ascii=False, separators=(",", ":"))
        self._schema_column = spec.schema_column
        self._fields = () if spec.json_schema is None else typed(spec.json_schema).fields

    def text(self, row: Row) -> str:
        return text_of(row, self._column)

    def messages(self, row: Row, text: str) -> list[Message]:
        schema = self._schema if self._schema_column is None else str(row[self._schema_column])
        return [
            {"role": "system", "content": f"{self._instruction}\n{schema}"},
            {"role": "user", "content": text},
        ]

    def read(self, answer: Answer) -> dict[str, object]:
        try:
            cells = {field.name: cell(answer.value.get(field.name), field) for field in self._fields}
        except NoCell as error:
            raise AnswerRefused("invalid_output", str(error)) from error
        return {"output": answer.text, **cells}
