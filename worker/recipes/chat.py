"""chat: a column of messages -> the next message."""

from __future__ import annotations

import json

from db.specs import Chat
from worker.recipes.free_text import FreeText
from worker.recipes.recipe import Message, Row, RowRefused

ROLES = ("system", "user", "assistant", "tool")


class ChatRecipe(FreeText):
    default_max_tokens = 256

    def __init__(self, spec: Chat) -> None:
        self._column = spec.column

    def text(self, row: Row) -> str:
        """The longest message: it is what makes a conversation too long."""
        messages = self._conversation(row)
        return messages[_longest(messages)]["content"]

    def beginning(self, row: Row, text: str) -> str:
        return "\n".join(message["content"] for message in self._conversation(row))

    def messages(self, row: Row, text: str) -> list[Message]:
        messages = self._conversation(row)
        messages[_longest(messages)]["content"] = text
        return list(messages)

    def _conversation(self, row: Row) -> list[dict[str, str]]:
        value = row[self._column]
        if value is None:
            raise RowRefused("null_text", f"the column {self._column!r} is null")
        if isinstance(value, str):
            try:
                value = json.loads(value)
            except (ValueError, RecursionError) as error:
                raise RowRefused("invalid_messages", f"not JSON: {error}") from error
        if not isinstance(value, list):
            raise RowRefused("invalid_messages", f"a list of messages is wanted, not {type(value).__name__}")
        if not value:
            raise RowRefused("empty_text", "the list of messages is empty")
        messages = [_message(index, item) for index, item in enumerate(value)]
        if not any(message["content"].strip() for message in messages):
            raise RowRefused("empty_text", "every message is empty")
        return messages


def _message(index: int, item: object) -> dict[str, str]:
    if not isinstance(item, dict):
        raise RowRefused("invalid_messages", f"message {index} is not an object")
    role, content = item.get("role"), item.get("content")
    if role not in ROLES:
        raise RowRefused("invalid_messages", f"message {index} has the role {role!r}; there are {', '.join(ROLES)}")
    if not isinstance(content, str):
        raise RowRefused("invalid_messages", f"message {index} has no text as its content")
    try:
        content.encode()
    except UnicodeEncodeError as error:  # JSON can spell half a surrogate pair, which no tokenizer takes
        raise RowRefused("invalid_messages", f"message {index} is not Unicode text: {error.reason}") from error
    return {"role": role, "content": content}


def _longest(messages: list[dict[str, str]]) -> int:
    return max(range(len(messages)), key=lambda index: len(messages[index]["content"]))
