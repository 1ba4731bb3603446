"""Format: what an output must look like. No torch here."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from engine.errors import InvalidRequest


class FormatKind(StrEnum):
    """The languages in which a format can be written."""

    JSON_SCHEMA = "json_schema"  # text: a JSON Schema
    JSON_OBJECT = "json_object"  # text: empty; any JSON object
    REGEX = "regex"  # text: a regular expression for the whole output
    CHOICE = "choice"  # text: a JSON list of strings, one of which is the output
    LARK = "lark"  # text: a context-free grammar in Lark's syntax, with the rule `start`


@dataclass(frozen=True, slots=True)
class Format:
    """A language that the output is held to, token by token.

    JSON has its properties in the schema's order and one blank after a comma or a colon, like `json.dumps` and most of
    what models have read: without the blanks a small model answers worse and ends less often. `whitespace` allows any
    between its tokens instead.
    With `lenient`, keywords of a JSON Schema that cannot be enforced token by token are left out instead of refused:
    the caller validates the finished output.
    """

    kind: FormatKind
    text: str = ""
    whitespace: bool = False
    lenient: bool = False

    def __post_init__(self) -> None:
        if self.kind not in tuple(FormatKind):
            raise InvalidRequest("format.kind", self.kind, f"must be one of {', '.join(FormatKind)}")
        object.__setattr__(self, "kind", FormatKind(self.kind))  # a plain string is as good
        if (self.kind == FormatKind.JSON_OBJECT) == bool(self.text):
            wanted = "must be empty" if self.text else "is empty"
            raise InvalidRequest("format.text", self.text, f"{wanted} for the kind {self.kind}")
        if self.whitespace and self.kind not in (FormatKind.JSON_SCHEMA, FormatKind.JSON_OBJECT):
            raise InvalidRequest("format.whitespace", True, f"means nothing for the kind {self.kind}")
        if self.lenient and self.kind != FormatKind.JSON_SCHEMA:
            raise InvalidRequest("format.lenient", True, f"means nothing for the kind {self.kind}")

    @classmethod
    def schema(cls, schema: Mapping[str, object] | bool, *, whitespace: bool = False, lenient: bool = False) -> Format:
        """JSON that a schema describes."""
        return cls(FormatKind.JSON_SCHEMA, json.dumps(schema), whitespace, lenient)

    @classmethod
    def choice(cls, texts: Iterable[str]) -> Format:
        """One of these texts."""
        return cls(FormatKind.CHOICE, json.dumps(list(texts)))
