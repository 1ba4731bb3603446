"""Formats: what jobs with a format ask of the engine, and what becomes of answers that do or do not fit."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from db.models import JobStatus
from db.specs import JobSpec
from db.typed_columns import ENUM
from engine.format import Format, FormatKind
from engine.request import FinishReason
from tests.worker.factories import ECHO, Office, spec_of, write_texts
from worker.formats import RowFormats, row_formats, value_of
from worker.recipes import AnswerRefused, RowRefused

PERSON: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "age": {"type": ["integer", "null"]},
        "mood": {"enum": ["good", "bad"]},
        "tags": {"type": "array", "items": {"type": "string"}},
        "more": {"type": "object"},
    },
    "required": ["name"],
}
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}


def formats(**recipe: Any) -> RowFormats | None:
    given = {"input": "in", "model": "fake", "recipe": recipe}
    return row_formats(JobSpec.model_validate(given))


@pytest.mark.parametrize(
    ("format", "expected"),
    [
        (None, None),
        ({"type": "json_schema", "json_schema": SCHEMA}, Format.schema(SCHEMA)),
        (
            {"type": "json_schema", "json_schema": SCHEMA, "whitespace": True, "on_unsupported": "validate"},
            Format.schema(SCHEMA, whitespace=True, lenient=True),
        ),
        ({"type": "json_object", "whitespace": True}, Format(FormatKind.JSON_OBJECT, whitespace=True)),
        ({"type": "regex", "pattern": "a+"}, Format(FormatKind.REGEX, "a+")),
        ({"type": "choice", "choices": ["x", "y"]}, Format.choice(["x", "y"])),
        ({"type": "grammar", "grammar": 'start: "a"'}, Format(FormatKind.LARK, 'start: "a"')),
    ],
)
def test_formats_of_a_job(format: dict[str, Any] | None, expected: Format | None) -> None:
    for recipe in ({**ECHO, "format": format}, {"kind": "chat", "format": format}):
        made = formats(**recipe)
        assert (made and made.of({})) == expected


def test_extract_closes_what_has_columns() -> None:
    made = formats(kind="extract", json_schema=SCHEMA)
    assert made is not None
    assert made.fixed == Format.schema({**SCHEMA, "additionalProperties": False})


def test_a_schema_per_row() -> None:
    made = formats(kind="extract", schema_column="s", on_unsupported="validate")
    assert made is not None
    assert made.of({"s": '{"type":"object"}'}) == Format.schema({"type": "object"}, lenient=True)
    for text, message in (
        (None, "the column 's' is null"),
        ("{", "schema: is not JSON: "),
        ('{"type": "strin"}', "type: 'strin' is not valid"),
    ):
        with pytest.raises(RowRefused) as caught:
            made.of({"s": text})
        assert caught.value.code == "invalid_schema"
        assert caught.value.message.startswith(message)


@pytest.mark.parametrize(
    ("format", "text", "value"),
    [
        (Format.schema(SCHEMA), '{"a":1}', {"a": 1}),
        (Format(FormatKind.JSON_OBJECT), '{"é":[null]}', {"é": [None]}),
        (Format.choice(["x", "y"]), "y", "y"),
        (Format(FormatKind.REGEX, "a+"), "aaa", "aaa"),
    ],
)
def test_good_answers(format: Format, text: str, value: object) -> None:
    assert value_of(format, text, FinishReason.STOP) == value


@pytest.mark.parametrize(
    ("format", "text", "code", "message"),
    [
        (Format.schema(SCHEMA), '{"a":"x"}', "invalid_output", "type: 'x' is not of type 'integer' at ['a']"),
        (Format.schema(SCHEMA), '{"a":', "invalid_output", "not JSON: Expecting value"),
        (Format.schema(SCHEMA), '{"a":NaN}', "invalid_output", "not JSON: NaN is no JSON number"),
        (Format.schema({}), '"\\ud800"', "invalid_output", "not JSON: 'utf-8' codec can't encode"),
        (Format.schema({}), "9" * 5000, "invalid_output", "not JSON: Exceeds the limit"),
        (Format.schema({}), "[" * 100_000, "invalid_output", "not JSON: maximum recursion depth exceeded"),
        (Format(FormatKind.JSON_OBJECT), "[]", "invalid_output", "an object is wanted, not list"),
        (Format.choice(["x"]), "z", "invalid_output", "'z' is none of the choices"),
    ],
)
def test_bad_answers(format: Format, text: str, code: str, message: str) -> None:
    with pytest.raises(AnswerRefused) as caught:
        value_of(format, text, FinishReason.STOP)
    assert caught.value.code == code
    assert caught.value.message.startswith(message)


@pytest.mark.parametrize(
    ("format", "code"),
    [(Format.schema(SCHEMA), "truncated_json"), (Format(FormatKind.REGEX, "a+"), "truncated_output")],
)
def test_what_the_limit_cut_is_no_answer(format: Format, code: str) -> None:
    with pytest.raises(AnswerRefused) as caught:
        value_of(format, '{"a":1}', FinishReason.LENGTH)
    assert caught.value.code == code


# -- whole jobs: the fake model answers with the row's text ------------------------------------------------------------


def run(office: Office, tmp_path: Path, texts: Sequence[str | None], **spec: Any) -> pa.Table:
    source, out = write_texts(tmp_path / "in.parquet", texts), tmp_path / "out"
    office.submit(spec_of(source, keep_columns=["id"], **spec), out)
    office.work()
    return pa.concat_tables(pq.read_table(path) for path in sorted(out.glob("part-*.parquet")))


def test_extract_gives_typed_columns(office: Office, tmp_path: Path) -> None:
    texts = [
        '{"name":"Ann","age":7,"mood":"good","tags":["x"],"more":{"k":[1]}}',
        '{"name":"Bob","age":null}',
        '{"name":"Cy","nick":"C"}',
        '{"name":"a name that is longer than the limit of tokens allows it to be, by far, and then some more"}',
        '{"name":"Dee","age":99999999999999999999}',
        None,
    ]
    table = run(office, tmp_path, texts, recipe={"kind": "extract", "json_schema": PERSON}, shard_rows=2)
    assert table.schema.names == [
        *("id", "output", "name", "age", "mood", "tags", "more", "finish_reason", "error"),
        *("prompt_tokens", "cached_tokens", "output_tokens", "truncated_tokens"),
    ]
    assert [table.schema.field(name).type for name in ("name", "age", "mood", "more")] == [
        *(pa.string(), pa.int64(), ENUM, pa.string())
    ]
    rows = table.select(["output", "name", "age", "mood", "tags", "more"]).to_pylist()
    ann = {"name": "Ann", "age": 7, "mood": "good", "tags": ["x"], "more": '{"k":[1]}'}
    empty = dict.fromkeys(rows[0])
    assert rows == [
        {"output": texts[0], **ann},
        {**empty, "output": texts[1], "name": "Bob"},
        *([empty] * 4),
    ]
    assert [row["error"] and row["error"]["code"] for row in table.to_pylist()] == [
        *(None, None, "invalid_output", "truncated_json", "invalid_output", "null_text")
    ]
    assert table["finish_reason"].to_pylist() == ["stop", "stop", "stop", "length", "stop", "error"]
    job = office.job()
    assert (job.status, job.rows_succeeded, job.rows_failed) == (JobStatus.COMPLETED_WITH_ERRORS, 2, 4)
    errors = json.loads((tmp_path / "out" / "_manifest.json").read_text())["errors"]
    assert errors == {"invalid_output": 2, "null_text": 1, "truncated_json": 1}


def test_raw_output_is_kept_of_failed_rows_too(office: Office, tmp_path: Path) -> None:
    recipe = {"kind": "extract", "json_schema": PERSON, "keep_raw": True}
    table = run(office, tmp_path, ['{"name":1}', None, '{"name":"A"}'], recipe=recipe)
    assert table["raw_output"].to_pylist() == ['{"name":1}', None, '{"name":"A"}']
    assert table["output"].to_pylist() == [None, None, '{"name":"A"}']


def test_an_unsupported_keyword_fails_the_job_before_the_first_row(office: Office, tmp_path: Path) -> None:
    schema = {"type": "array", "uniqueItems": True}
    recipe = {**ECHO, "format": {"type": "json_schema", "json_schema": schema}}
    office.submit(spec_of(write_texts(tmp_path / "in.parquet", ["[1]"]), recipe=recipe), tmp_path / "out")
    assert office.work() == ["split"]
    job = office.job()
    assert (job.status, job.error_code) == (JobStatus.FAILED, "unsupported_format")
    assert job.error_message == "format json_schema, uniqueItems: Unimplemented keys"


def test_or_is_validated_afterwards(office: Office, tmp_path: Path) -> None:
    schema = {"type": "array", "uniqueItems": True}
    format = {"type": "json_schema", "json_schema": schema, "on_unsupported": "validate"}
    table = run(office, tmp_path, ["[1,2]", "[1,1]"], recipe={**ECHO, "format": format})
    assert table["output"].to_pylist() == ["[1,2]", None]
    assert table["error"].to_pylist()[1] == {
        "code": "invalid_output",
        "message": "uniqueItems: [1, 1] has non-unique elements",
    }


def test_schemas_from_a_column(office: Office, tmp_path: Path) -> None:
    schemas = ['{"type":"integer"}', '{"type":"string"}', "{", None, '{"uniqueItems":true}']
    pq.write_table(pa.table({"text": ["1"] * 5, "schema": schemas}), tmp_path / "in.parquet")
    out = tmp_path / "out"
    spec = spec_of(tmp_path / "in.parquet", recipe={"kind": "extract", "schema_column": "schema"}, keep_columns=[])
    office.submit(spec, out)
    office.work()
    table = pq.read_table(out / "part-00000.parquet")
    assert table.schema.names[:2] == ["output", "finish_reason"]
    assert table["output"].to_pylist() == ["1", None, None, None, None]
    assert [row and row["code"] for row in table["error"].to_pylist()] == [
        *(None, "invalid_output", "invalid_schema", "invalid_schema", "unsupported_format")
    ]


def test_requests_carry_format_and_job(office: Office, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    monkeypatch.setattr("tests.worker.fakes.FakeEngine.add", lambda self, request: seen.append(request) or 1 / 0)
    recipe = {"kind": "extract", "json_schema": SCHEMA, "forced": "commit"}
    office.submit(spec_of(write_texts(tmp_path / "in.parquet", ["{}"]), recipe=recipe), tmp_path / "out")
    office.work()
    assert {(request.format, request.forced, request.group) for request in seen} == {
        (Format.schema({**SCHEMA, "additionalProperties": False}), "commit", "job")
    }


def test_multi_label(office: Office, tmp_path: Path) -> None:
    """The fake finds an answer likely whose text stands in the row."""
    many = {"kind": "label", "labels": ["a", "b"], "multi_label": True, "calibration": "none", "label_probs": True}
    table = run(office, tmp_path, ["x a: yes b: no", "b: yes a: no"], recipe=many)
    assert table["labels"].to_pylist() == [["a"], ["b"]]
    assert table["output"].to_pylist() == ['["a"]', '["b"]']
    assert [cell["label"] for cell in table["label_probs"].to_pylist()[0]] == ["a", "b"]


def test_abstention(office: Office, tmp_path: Path) -> None:
    recipe = {"kind": "label", "labels": ["good", "bad"], "calibration": "none", "abstain_below": 0.8}
    table = run(office, tmp_path, ["good", "neither"], recipe=recipe)
    assert table.select(["output", "label", "abstained", "finish_reason", "error"]).to_pylist() == [
        {"output": "good", "label": "good", "abstained": False, "finish_reason": "stop", "error": None},
        {"output": None, "label": None, "abstained": True, "finish_reason": "stop", "error": None},
    ]
    assert office.job().status is JobStatus.COMPLETED
