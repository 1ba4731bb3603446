"""Markdown tables of JSON Schema, as the references need them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

Schema = Mapping[str, Any]
BOUNDS = {
    "minimum": "at least {}",
    "exclusiveMinimum": "more than {}",
    "maximum": "at most {}",
    "exclusiveMaximum": "less than {}",
    "minLength": "at least {} characters",
    "maxLength": "at most {} characters",
    "minItems": "at least {} items",
    "maxItems": "at most {} items",
    "pattern": "`{}`",
}


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table; bars and line ends in a cell are made harmless."""
    lines = [f"| {' | '.join(head)} |", "|" + "---|" * len(head)]
    lines += [f"| {' | '.join(cell(text) for text in row)} |" for row in rows]
    return "\n".join(lines) + "\n"


def cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def kind(schema: Schema, link: str = "") -> str:
    """`text`, `whole number or null`, `list of [Label](#label)`; `link` goes before the names of models."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"[{name}]({link}#{name.lower()})"
    for several in ("anyOf", "oneOf"):
        if several in schema:
            return " or ".join(dict.fromkeys(kind(each, link) for each in schema[several]))
    if "const" in schema:
        return f"`{json.dumps(schema['const'])}`"
    if "enum" in schema:
        return " or ".join(f"`{value}`" for value in schema["enum"])
    match schema.get("type"):
        case "array":
            if "prefixItems" in schema:
                return "pair of " + ", ".join(kind(each, link) for each in schema["prefixItems"])
            return f"list of {kind(schema.get('items', {}), link)}"
        case "object":
            values = schema.get("additionalProperties")
            return f"object of {kind(values, link)}" if isinstance(values, dict) and values else "object"
        case "string":
            return {"date-time": "time", "date": "date", "binary": "bytes"}.get(schema.get("format", ""), "text")
        case "null":
            return "null"
        case str(name):
            return {"integer": "whole number", "number": "number", "boolean": "true or false"}[name]
        case _:
            return "anything"


def bounds(schema: Schema) -> str:
    """What a value must be beside its type, of the schema or of what it is when it is not null."""
    parts = [words.format(_plain(schema[name])) for name, words in BOUNDS.items() if name in schema]
    parts += [bounds(each) for each in schema.get("anyOf", ())]
    return ", ".join(part for part in parts if part)


def default(schema: Schema, required: bool) -> str:
    if required:
        return "required"
    value = schema.get("default")
    return "" if value is None else f"`{json.dumps(value, ensure_ascii=False)}`"


def meaning(schema: Schema) -> str:
    told = schema.get("description") or next((meaning(each) for each in schema.get("anyOf", ()) if each), "")
    if not schema.get("description") and "anyOf" in schema:
        return told
    limits = bounds(schema)
    return f"{told} ({limits})".strip() if limits else told


def _plain(value: Any) -> str:
    return f"{value:,.0f}" if isinstance(value, float) and value.is_integer() else str(value)
