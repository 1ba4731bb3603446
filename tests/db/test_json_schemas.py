"""JSON Schemas from clients: what is refused, and what validation says."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from pydantic import BaseModel

from db.json_schemas import MAX_BYTES, InvalidSchema, as_schema, check, checked, problem


def nested(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(depth):
        schema = {"not": schema}
    return schema


@pytest.mark.parametrize(
    ("schema", "keyword", "reason"),
    [
        (5, "schema", "must be an object or a boolean, not int"),
        ({"type": "strin"}, "type", "'strin' is not valid under any of the given schemas"),
        ({"properties": {"a": {"minLength": -1}}}, "minLength", "-1 is less than the minimum of 0"),
        ({"const": float("nan")}, "schema", "is not JSON: Out of range float values are not JSON compliant"),
        ({"title": "\ud800"}, "schema", "is not JSON: 'utf-8' codec can't encode character '\\ud800'"),
        (nested(70), "schema", "is nested more than 64 deep"),
        ({"title": "x" * MAX_BYTES}, "schema", "has 250,013 bytes; the limit is 250,000"),
        ({"pattern": "(?=a)"}, "pattern", "'(?=a)' is not taken: Invalid regular expression: invalid perl operator"),
        ({"items": {"patternProperties": {"(a)\\1": True}}}, "pattern", "'(a)\\\\1' is not taken"),
        (
            {"patternProperties": {"a": True}, "unevaluatedProperties": False},
            "unevaluatedProperties",
            "cannot be validated beside patternProperties",
        ),
    ],
)
def test_refused(schema: object, keyword: str, reason: str) -> None:
    with pytest.raises(InvalidSchema) as caught:
        check(schema)
    assert caught.value.keyword == keyword
    assert caught.value.reason.startswith(reason)


def test_constants_are_data() -> None:
    check({"enum": [{"pattern": "("}], "properties": {"pattern": {"type": "string"}}})


def test_text_of_a_row() -> None:
    assert checked('{ "type" : "object" }') == '{"type": "object"}'
    for text, reason in (("{", "is not JSON: Expecting property name"), ("[" * 100_000, "is not JSON: maximum rec")):
        with pytest.raises(InvalidSchema) as caught:
            checked(text)
        assert caught.value.reason.startswith(reason)


def test_pydantic_models_give_their_schema() -> None:
    class Point(BaseModel):
        x: int

    assert as_schema(Point) == {
        "properties": {"x": {"title": "X", "type": "integer"}},
        "required": ["x"],
        "title": "Point",
        "type": "object",
    }
    assert as_schema({"type": "object"}) == {"type": "object"}


@pytest.mark.parametrize(
    ("schema", "value", "expected"),
    [
        ({"type": "integer"}, 1.0, None),
        ({"type": "integer"}, "1", "type: '1' is not of type 'integer'"),
        (
            {"properties": {"a": {"items": {"maximum": 3}}}},
            {"a": [1, 5]},
            "maximum: 5 is greater than the maximum of 3 at ['a'][1]",
        ),
        ({"pattern": "^\\u00e9\\d+$"}, "é12", None),
        ({"pattern": "^\\u00e9\\d+$"}, "é12\n", "pattern: 'é12\\n' does not match '^\\\\u00e9\\\\d+$'"),
        ({"pattern": "\\p{Lu}"}, "É", None),
        (
            {"patternProperties": {"^n_": {"type": "integer"}}},
            {"n_a": "x"},
            "type: 'x' is not of type 'integer' at ['n_a']",
        ),
        (
            {"properties": {"a": True}, "additionalProperties": False},
            {"b": 1},
            "additionalProperties: the property 'b' is not allowed",
        ),
        ({"patternProperties": {"^n_": True}, "additionalProperties": False}, {"n_a": 1}, None),
        ({"additionalProperties": {"type": "null"}}, {"a": 1}, "type: 1 is not of type 'null' at ['a']"),
        ({"format": "date"}, "no date", None),
        (
            {"$schema": "http://json-schema.org/draft-07/schema#", "items": [{"type": "null"}]},
            [1],
            "type: 1 is not of type 'null' at [0]",
        ),
        ({"$ref": "#"}, 1, "$ref: the schema refers to itself without end"),
    ],
)
def test_problem(schema: dict[str, Any], value: object, expected: str | None) -> None:
    assert problem(json.dumps(schema), value) == expected


def test_nothing_is_fetched(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object, **kwargs: object) -> None:
        raise AssertionError("the network was asked")

    monkeypatch.setattr("socket.socket.connect", refuse)
    assert problem('{"$ref": "http://127.0.0.1:9/schema.json"}', 1) == (
        "$ref: Unresolvable: http://127.0.0.1:9/schema.json"
    )


def test_no_pattern_takes_long() -> None:
    """Python's own engine would take 2^40 steps."""
    before = time.monotonic()
    assert problem('{"pattern": "^(a|a)*$"}', "a" * 40 + "b") is not None
    assert time.monotonic() - before < 5
