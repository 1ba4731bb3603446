"""Lines of a batch's file: what makes them no requests, and what they become."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from api.openai.conversion import Conversion, FileRefused
from tests.api.openai.office import ENDPOINT, Desk
from tests.api.openai.rig import chat, jsonl

REQUEST = chat("a", "hi")
BODY = REQUEST["body"]


def converted(folder: Path, requests: list[Any], **limits: int) -> tuple[Conversion, bytes]:
    source, sink = folder / "in.jsonl", io.BytesIO()
    source.write_bytes(jsonl(requests))
    made = Conversion(ENDPOINT, **{"max_requests": 2000, "max_line_bytes": 10_000, **limits}, beat=lambda: None)
    made.write(source, sink)
    return made, sink.getvalue()


def errors(folder: Path, requests: list[Any], **limits: int) -> list[dict[str, Any]]:
    with pytest.raises(FileRefused) as refused:
        converted(folder, requests, **limits)
    return refused.value.errors


def without(name: str, request: dict[str, Any] = REQUEST) -> dict[str, Any]:
    return {key: value for key, value in request.items() if key != name}


def body(**change: Any) -> dict[str, Any]:
    return {**REQUEST, "custom_id": "b", "body": {key: v for key, v in {**BODY, **change}.items() if v is not ...}}


@pytest.mark.parametrize(
    ("line", "code", "message", "param"),
    [
        ("{", "invalid_json_line", "This line is not parseable as valid JSON.", None),
        ("[]", "invalid_json_line", "This line is not parseable as valid JSON.", None),
        ('{"custom_id": NaN}', "invalid_json_line", "This line is not parseable as valid JSON.", None),
        ("[" * 5000, "invalid_json_line", "This line is not parseable as valid JSON.", None),
        (without("custom_id"), "missing_required_parameter", "Missing required parameter: 'custom_id'.", "custom_id"),
        (REQUEST, "duplicate_custom_id", "The custom_id 'a' was used before.", "custom_id"),
        ({**REQUEST, "custom_id": 7}, "invalid_custom_id", "'custom_id' must be a string", "custom_id"),
        ({**without("body"), "custom_id": "b"}, "missing_required_parameter", "Missing", "body"),
        ({**REQUEST, "custom_id": "b", "method": "GET"}, "invalid_method", "The method", "method"),
        (
            {**REQUEST, "custom_id": "b", "url": "/v1/completions"},
            "invalid_url",
            "The URL provided for this request does not match the batch endpoint.",
            "url",
        ),
        ({**REQUEST, "custom_id": "b", "colour": 1}, "unknown_parameter", "Unknown parameter: 'colour'.", "colour"),
        (
            body(stream=True),
            "streaming_unsupported",
            "Chat Completions: Streaming is not supported in the Batch API.",
            "body.stream",
        ),
        (body(model=...), "invalid_request", "Model parameter is required.", "body.model"),
        (body(messages=...), "invalid_request", "Messages parameter is required.", "body.messages"),
        (body(model="other"), "mismatched_model", "A batch has one model", "body.model"),
        (body(tools=[]), "unsupported_parameter", "'tools' is not supported.", "body.tools"),
        (body(temperature=3), "invalid_value", "Invalid value for 'temperature'", "body.temperature"),
        (
            body(response_format={"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "x"}}}),
            "invalid_value",
            "Invalid value for 'response_format.json_schema.schema'",
            "body.response_format.json_schema.schema",
        ),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, line: Any, code: str, message: str, param: str | None) -> None:
    (found,) = errors(tmp_path, [REQUEST, "", line, chat("z", "fine")])
    assert (found["code"], found["param"], found["line"]) == (code, param, 3)
    assert found["message"].startswith(message)


def test_a_bad_line_fails_the_batch(desk: Desk) -> None:
    failed = desk.start([REQUEST, "{"])
    assert (failed["status"], failed["request_counts"]["total"]) == ("failed", 0)
    assert failed["failed_at"] is not None
    assert [each["line"] for each in failed["errors"]["data"]] == [2]
    assert list(desk.services.settings.uploads.glob("*.parquet")) == []


def test_every_bad_line_is_named_up_to_a_hundred(tmp_path: Path) -> None:
    found = errors(tmp_path, ["{"] * 130)
    assert [each["line"] for each in found] == [*range(1, 101), None]
    assert found[-1]["message"] == "30 more lines are not valid."


@pytest.mark.parametrize(
    ("limits", "code"), [({"max_requests": 2}, "too_many_requests"), ({"max_line_bytes": 200}, "line_too_long")]
)
def test_limits(tmp_path: Path, limits: dict[str, int], code: str) -> None:
    found = errors(tmp_path, [chat("a", "x"), chat("b", "x"), chat("c", "x" * 500)], **limits)
    assert [(each["code"], each["line"]) for each in found] == [(code, 3)]


def test_a_file_of_blank_lines_is_no_batch(tmp_path: Path) -> None:
    assert [each["code"] for each in errors(tmp_path, ["", " "])] == ["empty_file"]


def test_good_lines_become_a_dataset(tmp_path: Path) -> None:
    """Bodies are kept as they are; what has no effect on the answer is taken."""
    idle = {
        "user": "u", "metadata": {"a": "b"}, "store": True, "service_tier": "auto", "stream": False, "logit_bias": {},
        "tools": None, "n": 1,
    }  # fmt: skip
    requests = [chat(f"r{i}", "\u2028 ü", **idle) for i in range(1001)]
    made, sink = converted(tmp_path, requests)
    assert (made.num_rows, made.model) == (1001, "fake")
    table = pq.read_table(io.BytesIO(sink))
    assert table["custom_id"].to_pylist() == [f"r{i}" for i in range(1001)]
    assert json.loads(table["body"][1000].as_py()) == requests[1000]["body"]
