"""Formats: what the answers of a job are held to, and whether a finished answer is what its format asks for."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

from db import json_schemas
from db.formats import ChoiceFormat, GrammarFormat, JsonObjectFormat, RegexFormat, SchemaOptions
from db.specs import Extract, JobSpec
from db.typed_columns import typed
from engine.format import Format, FormatKind
from engine.request import FinishReason
from worker.recipes import AnswerRefused, Row, RowRefused

JSON_KINDS = (FormatKind.JSON_SCHEMA, FormatKind.JSON_OBJECT)


@dataclass(frozen=True, slots=True)
class RowFormats:
    """The formats of a job's rows: one for all of them, or each its own from a column of JSON Schemas."""

    fixed: Format | None
    column: str = ""
    whitespace: bool = False
    lenient: bool = False

    def of(self, row: Row) -> Format:
        """Raises RowRefused: invalid_schema."""
        if self.fixed is not None:
            return self.fixed
        text = row[self.column]
        if not isinstance(text, str):
            raise RowRefused("invalid_schema", f"the column {self.column!r} is null")
        try:
            text = json_schemas.checked(text)
        except json_schemas.InvalidSchema as error:
            raise RowRefused("invalid_schema", str(error)) from error
        return Format(FormatKind.JSON_SCHEMA, text, self.whitespace, self.lenient)


def row_formats(spec: JobSpec) -> RowFormats | None:
    """None for a job whose answers are free. Raises InvalidJob, and EngineError for a format that cannot be one."""
    match spec.structure:
        case None:
            return None
        case SchemaOptions(json_schema=schema) as options:
            lenient = options.on_unsupported == "validate"
            if schema is None:
                return RowFormats(None, str(options.schema_column), options.whitespace, lenient)
            if isinstance(options, Extract):
                schema = typed(schema).schema
            return RowFormats(Format.schema(schema, whitespace=options.whitespace, lenient=lenient))
        case JsonObjectFormat(whitespace=whitespace):
            return RowFormats(Format(FormatKind.JSON_OBJECT, whitespace=whitespace))
        case RegexFormat(pattern=pattern):
            return RowFormats(Format(FormatKind.REGEX, pattern))
        case ChoiceFormat(choices=choices):
            return RowFormats(Format.choice(choices))
        case GrammarFormat(grammar=grammar):
            return RowFormats(Format(FormatKind.LARK, grammar))


def value_of(format: Format, text: str, finish_reason: FinishReason) -> Any:
    """The answer as a value: JSON parsed and valid under the schema, other formats as text. Raises AnswerRefused.

    Regular expressions and grammars are not matched again: the engine ends such an output where it is whole.
    """
    if finish_reason is FinishReason.LENGTH:  # also where the text happens to be valid: 12 may have become 123
        code = "truncated_json" if format.kind in JSON_KINDS else "truncated_output"
        raise AnswerRefused(code, "the answer was cut by the limit of tokens (sampling.max_tokens)")
    if format.kind in JSON_KINDS:
        return _json_value(format, text)
    if format.kind is FormatKind.CHOICE and text not in json.loads(format.text):
        raise AnswerRefused("invalid_output", f"{text[:200]!r} is none of the choices")
    return text


def _json_value(format: Format, text: str) -> Any:
    try:
        value = json.loads(text, parse_constant=_refuse_constant)
        if "\\u" in text:  # half a surrogate pair can be spelled, and no column takes it
            json.dumps(value, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:
        raise AnswerRefused("invalid_output", f"not JSON: {error}") from error
    if format.kind is FormatKind.JSON_OBJECT:
        problem = None if isinstance(value, Mapping) else f"an object is wanted, not {type(value).__name__}"
    else:
        problem = json_schemas.problem(format.text, value)
    if problem is not None:
        raise AnswerRefused("invalid_output", problem)
    return value


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON number")
