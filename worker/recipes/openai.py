"""openai: one OpenAI request body -> the choices of its answer. Every row has its own sampling, format and number."""

from __future__ import annotations

import json

from db.openai_body import Body, BodyRefused, ChatBody, parse
from db.specs import OpenAI
from worker.recipes.free_text import FreeText
from worker.recipes.recipe import Message, Row, RowRefused, text_of


class OpenAIRecipe(FreeText):
    default_max_tokens = 1  # not read: each body has its own limit

    def __init__(self, spec: OpenAI) -> None:
        self._spec = spec

    def text(self, row: Row) -> str:
        return text_of(row, self._spec.column)

    def messages(self, row: Row, text: str) -> list[Message]:
        raise AssertionError("the prompt comes from the body (worker.openai_rows)")

    def body(self, text: str) -> Body:
        """Raises RowRefused: invalid_request."""
        try:
            return parse(self._spec.endpoint, json.loads(text))
        except (ValueError, RecursionError) as error:
            raise RowRefused("invalid_request", f"not JSON: {error}") from error
        except BodyRefused as refusal:
            raise RowRefused("invalid_request", refusal.message) from refusal


def conversation(body: ChatBody) -> list[Message]:
    return [message.for_template() for message in body.messages]
