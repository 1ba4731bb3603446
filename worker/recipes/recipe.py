"""Recipe: what makes one kind of job differ from another, and nothing else."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

Message: TypeAlias = Mapping[str, str]
Row: TypeAlias = Mapping[str, object]
# Texts in, log-probabilities of the recipe's choices out, in the same order.
Score: TypeAlias = Callable[[Sequence[str]], list[tuple[float, ...]]]


class RowRefused(Exception):
    """A row that cannot become a request.

    `code` is what the output row's `error` says: null_text, empty_text, invalid_utf8, text_too_large, too_long,
    invalid_messages, template_error, invalid_schema. Rows that the engine fails have too_long, unsupported_format or
    engine_error.
    """

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


class AnswerRefused(Exception):
    """A finished answer that is none: cut by the token limit, or not what its format or its columns can hold.

    `code` is what the output row's `error` says: truncated_json, truncated_output, invalid_output.
    """

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


@dataclass(frozen=True, slots=True)
class Answer:
    """What the model answered: the text; the value it stands for, where the job has a format; scores of choices."""

    text: str
    value: Any = None
    choice_logprobs: tuple[float, ...] | None = None


class Recipe(Protocol):
    """How a row becomes messages and an answer becomes output values. Implementations hold no state between rows."""

    @property
    def default_max_tokens(self) -> int:
        """Tokens of an answer where the job names no limit."""

    @property
    def choices(self) -> tuple[tuple[int, ...], ...]:
        """Token sequences the answer must be one of; empty where it is free text."""

    @property
    def choice_margin(self) -> float | None:
        """See engine.Request: how much less probable than the best one an answer must be to be left unfinished."""
        ...

    def text(self, row: Row) -> str:
        """The row's own part of the prompt: what `on_long` may cut. Raises RowRefused."""

    def beginning(self, row: Row, text: str) -> str:
        """How the prompt begins, as far as rows differ in it: what two rows share of it, the prefix cache can share."""

    def messages(self, row: Row, text: str) -> Sequence[Message]:
        """The conversation to complete, with `text` standing for `self.text(row)`."""

    def read(self, answer: Answer) -> dict[str, object]:
        """The values of `output` and of the recipe's own columns (db.columns) for an answer. Raises AnswerRefused."""

    @property
    def sample_rows(self) -> int:
        """How many rows of the input `prepare` would like to see."""

    def prepare(self, sample: Sequence[str], score: Score) -> dict[str, object]:
        """What every shard of the job must know alike, as JSON values; computed once, before the first shard."""


def text_of(row: Row, column: str) -> str:
    """The text of a cell; raises RowRefused where there is none to work on."""
    value = row[column]
    if value is None:
        raise RowRefused("null_text", f"the column {column!r} is null")
    if not isinstance(value, str):
        raise TypeError(f"the column {column!r} holds {type(value).__name__}; submission checks that it is text")
    if not value.strip():
        raise RowRefused("empty_text", f"the column {column!r} is empty")
    return value
