"""JSON Schemas from clients: checked when a job is submitted, and made into validators of finished outputs.

The validators are jsonschema's with three differences, because schemas are written by clients and run in a worker:

- nothing is fetched: a `$ref` to another document cannot be resolved;
- regular expressions are RE2's, by way of Arrow: they take linear time whatever is written, and what RE2 lacks
  (look-around, back-references, repetitions over 1,000) is refused at submission;
- `format` is an annotation, as the standard has it by default, and is not asserted.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any

from pydantic import BaseModel

MAX_BYTES = 250_000
MAX_DEPTH = 64
CACHED = 64  # schemas of which a check or a validator is kept: some ten kilobytes each, some megabytes the largest
DATA = frozenset({"const", "enum", "default", "examples"})  # keywords whose values are no schemas
UNICODE_ESCAPE = re.compile(r"(?<!\\)((?:\\\\)*)\\u([0-9a-fA-F]{4})")


class InvalidSchema(ValueError):
    """Not a JSON Schema, or one that cannot be validated here. `keyword` is the one at fault, or `schema`."""

    def __init__(self, keyword: str, reason: str) -> None:
        super().__init__(f"{keyword}: {reason}")
        self.keyword = keyword
        self.reason = reason


def as_schema(value: object) -> object:
    """A Pydantic model's own schema; anything else as it is."""
    if isinstance(value, type) and issubclass(value, BaseModel):
        return value.model_json_schema()
    return value


def check(schema: object) -> None:
    """Raises InvalidSchema for what is wrong with a schema by itself."""
    if not isinstance(schema, (dict, bool)):
        raise InvalidSchema("schema", f"must be an object or a boolean, not {type(schema).__name__}")
    if _depth(schema) > MAX_DEPTH:
        raise InvalidSchema("schema", f"is nested more than {MAX_DEPTH} deep")
    try:
        text = json.dumps(schema, allow_nan=False, ensure_ascii=False)
        size = len(text.encode())
    except (TypeError, ValueError) as error:
        raise InvalidSchema("schema", f"is not JSON: {error}") from error
    if size > MAX_BYTES:
        raise InvalidSchema("schema", f"has {size:,} bytes; the limit is {MAX_BYTES:,}")
    _check_keywords(text)


@lru_cache(CACHED)
def _check_keywords(text: str) -> None:
    """Kept, because a job's specification is read back again and again."""
    schema = json.loads(text)
    _check_against_draft(schema)
    for part in subschemas(schema):
        for pattern in _patterns(part):
            _check_pattern(pattern)
        if "patternProperties" in part and "unevaluatedProperties" in part:
            raise InvalidSchema("unevaluatedProperties", "cannot be validated beside patternProperties")


def problem(text: str, value: object) -> str | None:
    """What is wrong with a value under the schema written in `text`, in one line; None when it is valid."""
    from jsonschema.exceptions import best_match
    from referencing.exceptions import Unresolvable

    try:
        error = best_match(_validator(text).iter_errors(value))
    except Unresolvable as missing:
        return f"$ref: {missing}"
    except RecursionError:
        return "$ref: the schema refers to itself without end"
    if error is None:
        return None
    place = "".join(f"[{part!r}]" for part in error.absolute_path)
    return f"{error.validator}: {error.message[:500]}" + (f" at {place}" if place else "")


@lru_cache(CACHED)
def checked(text: str) -> str:
    """A schema written as JSON text, spelled our way. Raises InvalidSchema, also for text that is not JSON."""
    try:
        schema = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidSchema("schema", f"is not JSON: {error}") from error
    check(schema)
    return json.dumps(schema)


def subschemas(schema: object) -> Iterator[Mapping[str, Any]]:
    """Every object inside a schema that may be a schema: also those in unknown keywords, none in constant data."""
    if isinstance(schema, dict):
        yield schema
        for name, value in schema.items():
            if name not in DATA:
                yield from subschemas(value)
    elif isinstance(schema, list):
        for value in schema:
            yield from subschemas(value)


@lru_cache(CACHED)
def _validator(text: str) -> Any:
    import jsonschema  # Imported where used: it takes a quarter of a second, and few commands need it.
    from referencing import Registry

    schema = json.loads(text)
    kind: Any = jsonschema.validators.validator_for(schema, default=jsonschema.Draft202012Validator)
    extend: Any = jsonschema.validators.extend  # which the stubs leave untyped
    ours = {
        "pattern": _pattern,
        "patternProperties": _pattern_properties,
        "additionalProperties": _additional_properties,
    }
    return extend(kind, ours)(schema, registry=Registry())


def _check_against_draft(schema: dict[str, Any] | bool) -> None:
    import jsonschema  # See _validator.

    kind: Any = jsonschema.validators.validator_for(schema, default=jsonschema.Draft202012Validator)
    try:
        kind.check_schema(schema, format_checker=None)
    except jsonschema.SchemaError as error:
        keyword = str(error.absolute_path[-1]) if error.absolute_path else "schema"
        raise InvalidSchema(keyword, error.message[:500]) from error


def _depth(value: object) -> int:
    """How deep the nesting is, up to just over the limit."""
    level, depth = [value], 0
    while level and depth <= MAX_DEPTH:
        inner: list[object] = []
        for each in level:
            inner += each.values() if isinstance(each, dict) else each if isinstance(each, list) else ()
        level, depth = inner, depth + 1
    return depth


# -- regular expressions -----------------------------------------------------------------------------------------------


def _patterns(schema: Mapping[str, Any]) -> Iterator[str]:
    pattern, by_name = schema.get("pattern"), schema.get("patternProperties")
    if isinstance(pattern, str):
        yield pattern
    if isinstance(by_name, dict):
        yield from by_name


def _check_pattern(pattern: str) -> None:
    try:
        found(pattern, "")
    except ValueError as error:  # pa.ArrowInvalid is one
        raise InvalidSchema("pattern", f"{pattern!r} is not taken: {error}") from error


def found(pattern: str, text: str) -> bool:
    """Whether a pattern in ECMAScript's spelling occurs in a text."""
    import pyarrow as pa  # Imported where used: specifications are also read where no data is.
    import pyarrow.compute as pc

    spelled = UNICODE_ESCAPE.sub(r"\1\\x{\2}", pattern)
    return bool(pc.match_substring_regex(pa.scalar(text), spelled).as_py())


def _pattern(validator: Any, pattern: str, value: object, schema: object) -> Iterator[Any]:
    from jsonschema import ValidationError

    if isinstance(value, str) and not found(pattern, value):
        yield ValidationError(f"{value!r} does not match {pattern!r}")


def _pattern_properties(validator: Any, patterns: Mapping[str, Any], value: object, schema: object) -> Iterator[Any]:
    if isinstance(value, dict):
        for pattern, inner in patterns.items():
            for name in value:
                if found(pattern, name):
                    yield from validator.descend(value[name], inner, path=name, schema_path=pattern)


def _additional_properties(validator: Any, inner: Any, value: object, schema: Mapping[str, Any]) -> Iterator[Any]:
    from jsonschema import ValidationError

    if not isinstance(value, dict):
        return
    patterns = schema.get("patternProperties", {})
    for name in value.keys() - schema.get("properties", {}).keys():
        if any(found(pattern, name) for pattern in patterns):
            continue
        if inner is False:
            yield ValidationError(f"the property {name!r} is not allowed")
        elif inner is not True:
            yield from validator.descend(value[name], inner, path=name)
