"""From JSON Schemas to Arrow columns and cells."""

from __future__ import annotations

import io
from typing import Any, Literal

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pydantic import BaseModel

from db.errors import InvalidJob
from db.typed_columns import ENUM, NoCell, cell, typed


def column(schema: object, **more: Any) -> pa.Field[Any]:
    """The column of one property."""
    (field,) = typed({"type": "object", "properties": {"x": schema}, **more}).fields
    return field


def is_json(field: pa.Field[Any]) -> bool:
    return field.type == pa.string() and field.metadata == {b"content": b"json"}


@pytest.mark.parametrize(
    ("schema", "type_"),
    [
        ({"type": "string", "format": "date"}, pa.string()),
        ({"type": "integer", "minimum": 0}, pa.int64()),
        ({"type": "number"}, pa.float64()),
        ({"type": "boolean"}, pa.bool_()),
        ({"type": ["string", "null"]}, pa.string()),
        ({"enum": ["a", "b", None]}, ENUM),
        ({"const": "a"}, ENUM),
        ({"enum": [1, 2]}, pa.int64()),
        ({"enum": [1, 2.5]}, pa.float64()),
        ({"const": True}, pa.bool_()),
        ({"anyOf": [{"type": "integer"}, {"type": "null"}], "default": None}, pa.int64()),
        ({"oneOf": [{"type": "null"}, {"enum": ["a"]}]}, ENUM),
        ({"allOf": [{"type": "integer"}], "description": "old Pydantic"}, pa.int64()),
        ({"type": "string", "anyOf": [{"minLength": 3}, {"const": ""}]}, pa.string()),
        ({"type": "array", "items": {"type": "number"}}, pa.list_(pa.field("element", pa.float64()))),
        (
            {"type": "object", "properties": {"a": {"enum": ["u"]}}},
            pa.struct([pa.field("a", ENUM)]),
        ),
    ],
)
def test_types(schema: dict[str, Any], type_: pa.DataType) -> None:
    field = column(schema)
    assert (field.type, field.nullable, field.metadata) == (type_, True, None)


@pytest.mark.parametrize(
    "schema",
    [
        True,
        {},
        {"type": "object"},
        {"type": "object", "properties": {"a": {}}, "additionalProperties": True},
        {"type": "object", "properties": {"a": {}}, "required": ["b"]},
        {"type": "object", "properties": {"a": {}}, "patternProperties": {"b": {}}},
        {"type": ["integer", "string"]},
        {"anyOf": [{"type": "integer"}, {"type": "string"}]},
        {"allOf": [{"type": "integer"}, {"minimum": 3}]},
        {"type": "array"},
        {"type": "array", "items": {"type": "string"}, "prefixItems": [{"type": "integer"}]},
        {"enum": ["a", 1]},
        {"enum": [None]},
        {"type": "null"},
        {"$ref": "#"},
        {"$ref": "other.json"},
        {"$ref": "#/$defs/missing"},
        {"properties": {"a": {}}},
    ],
)
def test_what_has_no_type_is_json_text(schema: object) -> None:
    field = column(schema)
    assert is_json(field)
    assert cell({"a": ["é", 1.5, None]}, field) == '{"a":["é",1.5,null]}'
    assert cell(None, field) is None


def test_references() -> None:
    defs = {"Id": {"type": "integer"}, "Tree": {"type": "object", "properties": {"kids": {"$ref": "#/$defs/Kids"}}}}
    defs["Kids"] = {"type": "array", "items": {"$ref": "#/$defs/Tree"}}
    assert column({"$ref": "#/$defs/Id", "title": "x"}, **{"$defs": defs}).type == pa.int64()
    assert is_json(column({"$ref": "#/$defs/Id", "minimum": 3}, **{"$defs": defs}))
    kids = column({"$ref": "#/$defs/Tree"}, **{"$defs": defs}).type.field("kids")
    assert isinstance(kids.type, pa.ListType)
    assert is_json(kids.type.value_field)  # where the recursion begins again


class Part(BaseModel):
    number: int
    size: float | None = None


class Order(BaseModel):
    customer: str
    state: Literal["open", "paid"]
    parts: list[Part]
    extra: dict[str, int] = {}


def test_a_pydantic_model() -> None:
    made = typed(Order.model_json_schema())
    part = pa.struct([pa.field("number", pa.int64()), pa.field("size", pa.float64())])
    assert [(field.name, field.type) for field in made.fields] == [
        ("customer", pa.string()),
        ("state", ENUM),
        ("parts", pa.list_(pa.field("element", part))),
        ("extra", pa.string()),
    ]
    # Typed objects are closed, the free one is not.
    assert made.schema["additionalProperties"] is False
    assert made.schema["properties"]["parts"]["items"]["additionalProperties"] is False
    assert made.schema["properties"]["extra"]["additionalProperties"] == {"type": "integer"}
    assert made.schema["required"] == ["customer", "state", "parts"]


def test_cells_through_parquet() -> None:
    fields = typed(Order.model_json_schema()).fields
    values: list[dict[str, Any]] = [
        {"customer": "Ä", "state": "paid", "parts": [{"number": 1.0}, {"number": 2, "size": 3}], "extra": {"a": 1}},
        {"customer": "B", "state": "open", "parts": []},
    ]
    columns = [pa.array([cell(value.get(field.name), field) for value in values], field.type) for field in fields]
    file = io.BytesIO()
    schema = pa.schema(fields)
    pq.write_table(pa.Table.from_arrays(columns, schema=schema), file)
    table = pq.read_table(file)
    assert table.schema == schema
    assert table.to_pylist() == [
        {
            "customer": "Ä",
            "state": "paid",
            "parts": [{"number": 1, "size": None}, {"number": 2, "size": 3.0}],
            "extra": '{"a":1}',
        },
        {"customer": "B", "state": "open", "parts": [], "extra": None},
    ]


@pytest.mark.parametrize(
    ("type_", "value", "reason"),
    [
        (pa.int64(), 2**63, "x: 9223372036854775808 does not fit 64 bits"),
        (pa.int64(), -(2**63) - 1, "x: -9223372036854775809 does not fit 64 bits"),
        (pa.int64(), float("inf"), "x: inf does not fit 64 bits"),
        (pa.float64(), 10**400, "x: the number does not fit a double"),
        (pa.float64(), float("inf"), "x: the number does not fit a double"),
    ],
)
def test_numbers_beyond_64_bits(type_: pa.DataType, value: float, reason: str) -> None:
    with pytest.raises(NoCell, match=reason):
        cell(value, pa.field("x", type_))


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        ({"type": "array", "items": {"type": "string"}}, "its top must be an object"),
        ({"type": "object", "properties": {"a": {}}, "additionalProperties": True}, "its top must be an object"),
        ({"type": "object", "properties": {f"p{i}": {} for i in range(2001)}}, "has more than 2,000 properties in all"),
    ],
)
def test_schemas_without_columns(schema: dict[str, Any], reason: str) -> None:
    with pytest.raises(InvalidJob) as caught:
        typed(schema)
    assert (caught.value.field, caught.value.reason[: len(reason)]) == ("recipe.json_schema", reason)
