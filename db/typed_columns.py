"""From a JSON Schema to Arrow columns, one per property, and from a valid answer to their cells.

| schema | column |
|---|---|
| string; integer; number; boolean | string; int64; double; bool |
| enum or const of strings | dictionary<int32, string> |
| object whose properties are listed | struct |
| array with one schema for its items | list |
| the same or null (`anyOf` with null, `type` with "null"), or not required | the same: every column may be null |
| anything else: free-form objects, unions, recursion | JSON text, its field marked with the metadata content = json |

The types follow from the schema alone, so all shards have the same. An object with a struct of its own is *closed*:
where its schema leaves open whether other properties may come, they may not, for there is no column to hold them.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from db.errors import InvalidJob

MAX_FIELDS = 2000
JSON_TEXT = {b"content": b"json"}
ENUM = pa.dictionary(pa.int32(), pa.string())
SCALARS: dict[str, pa.DataType] = {
    "string": pa.string(),
    "integer": pa.int64(),
    "number": pa.float64(),
    "boolean": pa.bool_(),
}
# Keywords that change nothing about which values are valid.
ANNOTATIONS = frozenset(
    {"title", "description", "default", "examples", "deprecated", "readOnly", "writeOnly", "$comment", "$schema"}
    | {"$defs", "definitions", "discriminator"}
)
# Keywords that say more about the object they stand in: whether others may come is not its own to close then.
COMBINATIONS = frozenset(
    {"$ref", "$dynamicRef", "allOf", "anyOf", "oneOf", "not", "if", "patternProperties"}
    | {"dependentSchemas", "dependencies"}
)

Schema = Mapping[str, Any]


class NoCell(ValueError):
    """A valid answer that the column's type cannot hold: an integer or number beyond 64 bits."""


@dataclass(frozen=True, slots=True)
class Typed:
    """The columns of a schema, and the schema with its typed objects closed: what is to be enforced."""

    fields: tuple[pa.Field[Any], ...]
    schema: dict[str, Any]


def typed(schema: Schema) -> Typed:
    """Raises InvalidJob when the schema's top is no object with listed properties, or has too many of them."""
    made, closed = _Walk(schema).place(schema, ())
    if not isinstance(made, pa.StructType):
        raise InvalidJob(
            "recipe.json_schema",
            "its top must be an object that lists its properties and allows no others: each becomes a column",
        )
    definitions = {name: schema[name] for name in ("$schema", "$defs", "definitions") if name in schema}
    return Typed(tuple(made), {**closed, **definitions})


def cell(value: Any, field: pa.Field[Any]) -> Any:
    """A valid value as what pyarrow puts into a column of this field. Raises NoCell."""
    if value is None:
        return None
    if (field.metadata or {}).get(b"content") == b"json":
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    if isinstance(field.type, pa.StructType):
        return {inner.name: cell(value.get(inner.name), inner) for inner in field.type}
    if isinstance(field.type, pa.ListType):
        return [cell(item, field.type.value_field) for item in value]
    if pa.types.is_int64(field.type):
        if not -(2**63) <= value < 2**63:
            raise NoCell(f"{field.name}: {str(value)[:40]} does not fit 64 bits")
        return int(value)
    if pa.types.is_float64(field.type):
        return _double(value, field.name)
    return value


def _double(value: float, name: str) -> float:
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise NoCell(f"{name}: the number does not fit a double")
    return number


class _Walk:
    """One pass over a schema. A place is a type, None standing for JSON text, and the schema to enforce there."""

    def __init__(self, root: Schema) -> None:
        self._root = root
        self._num_fields = 0

    def place(self, schema: object, through: tuple[str, ...]) -> tuple[pa.DataType | None, Any]:
        """`through` holds the references followed to get here."""
        if not isinstance(schema, dict):
            return None, schema
        node, through = self._target(schema, through)
        if node is None:
            return None, schema
        for keyword in ("anyOf", "oneOf"):
            if keyword in node and not node.keys() - ANNOTATIONS - {keyword}:
                return self._or_null(node, keyword, through)
        types = node.get("type", [])
        kinds: set[str] = {types} if isinstance(types, str) else set(types)
        values = node.get("enum", [node["const"]] if "const" in node else None)
        if values is not None:
            return _constant(values), node
        if len(kinds - {"null"}) != 1:
            return None, schema
        (kind,) = kinds - {"null"}
        if kind in SCALARS:
            return SCALARS[kind], node
        if kind == "object":
            return self._object(node, through)
        return self._array(node, through) if kind == "array" else (None, node)

    def _target(self, schema: Schema, through: tuple[str, ...]) -> tuple[dict[str, Any] | None, tuple[str, ...]]:
        """The schema behind `$ref` and `allOf` of one; None when there is none to be had, or it is recursive."""
        node = dict(schema)
        while True:
            rest = {name: value for name, value in node.items() if name in ANNOTATIONS}
            inner = node.get("allOf")
            if isinstance(inner, list) and len(inner) == 1 and isinstance(inner[0], dict):
                if node.keys() - ANNOTATIONS != {"allOf"}:
                    return node, through
                node = {**inner[0], **rest}
            elif "$ref" in node:
                ref = node["$ref"]
                target = self._lookup(ref)
                if target is None or ref in through or node.keys() - ANNOTATIONS != {"$ref"}:
                    return None, through
                node, through = {**target, **rest}, (*through, ref)
            else:
                return node, through

    def _lookup(self, ref: str) -> Schema | None:
        if not ref.startswith("#/"):
            return None
        found: Any = self._root
        for part in ref[2:].split("/"):
            found = found.get(part.replace("~1", "/").replace("~0", "~")) if isinstance(found, dict) else None
        return found if isinstance(found, dict) else None

    def _or_null(
        self, node: dict[str, Any], keyword: str, through: tuple[str, ...]
    ) -> tuple[pa.DataType | None, dict[str, Any]]:
        others = [option for option in node[keyword] if option != {"type": "null"}]
        if len(others) != 1:
            return None, node
        made, closed = self.place(others[0], through)
        return made, {**node, keyword: [closed if option == others[0] else option for option in node[keyword]]}

    def _object(self, node: dict[str, Any], through: tuple[str, ...]) -> tuple[pa.DataType | None, dict[str, Any]]:
        listed = node.get("properties")
        opened = node.get("additionalProperties", False) or node.get("unevaluatedProperties", False)
        if not listed or opened or COMBINATIONS & node.keys() or set(node.get("required", ())) - set(listed):
            return None, node
        self._num_fields += len(listed)
        if self._num_fields > MAX_FIELDS:
            raise InvalidJob("recipe.json_schema", f"has more than {MAX_FIELDS:,} properties in all")
        places = {name: self.place(schema, through) for name, schema in listed.items()}
        made = pa.struct([_field(name, type_) for name, (type_, _) in places.items()])
        inner = {name: closed for name, (_, closed) in places.items()}
        return made, {**node, "properties": inner, "additionalProperties": False}

    def _array(self, node: dict[str, Any], through: tuple[str, ...]) -> tuple[pa.DataType | None, dict[str, Any]]:
        items = node.get("items")
        if not isinstance(items, dict) or "prefixItems" in node or COMBINATIONS & node.keys():
            return None, node
        made, closed = self.place(items, through)
        return pa.list_(_field("element", made)), {**node, "items": closed}


def _field(name: str, type_: pa.DataType | None) -> pa.Field[Any]:
    return pa.field(name, pa.string(), metadata=JSON_TEXT) if type_ is None else pa.field(name, type_)


def _constant(values: list[object]) -> pa.DataType | None:
    """The type of a closed list of values."""
    kinds = {type(value) for value in values if value is not None}
    if kinds == {str}:
        return ENUM
    if kinds == {bool}:
        return pa.bool_()
    if kinds == {int}:
        return pa.int64()
    return pa.float64() if kinds and kinds <= {int, float} else None
