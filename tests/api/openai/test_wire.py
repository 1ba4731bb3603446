"""The wire contract beside the life of a batch: files, pages, error bodies, and what makes a file no batch."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import update
from sqlalchemy.exc import OperationalError

from db.openai_models import OpenAIFile
from tests.api.openai.office import ENDPOINT, Desk
from tests.api.openai.rig import chat, jsonl

REQUEST = chat("a", "hi")
EARLY = {"anchor": "created_at", "seconds": 1}


def error(answer: Any, status: int) -> dict[str, Any]:
    """The error of an answer, after checking that it has the contract's shape."""
    assert answer.status_code == status, answer.text
    assert answer.headers["x-request-id"].startswith("req_")
    assert list(answer.json()) == ["error"]
    found: dict[str, Any] = answer.json()["error"]
    assert list(found) == ["message", "type", "param", "code"]
    return found


# -- files -------------------------------------------------------------------------------------------------------------


def test_a_file_is_kept_as_it_came(desk: Desk) -> None:
    form = {"purpose": "batch", "expires_after[anchor]": "created_at", "expires_after[seconds]": "3600"}
    sent = desk.http.post("/v1/files", files={"file": ("in.jsonl", jsonl([REQUEST]))}, data=form).json()
    assert sent["expires_at"] - sent["created_at"] == 3600
    assert {name: sent[name] for name in ("object", "bytes", "filename", "purpose", "status")} == {
        "object": "file", "bytes": len(jsonl([REQUEST])), "filename": "in.jsonl", "purpose": "batch",
        "status": "processed",
    }  # fmt: skip
    assert desk.http.get(f"/v1/files/{sent['id']}").json() == sent
    assert desk.http.get(f"/v1/files/{sent['id']}/content").content == jsonl([REQUEST])
    desk.http.delete(f"/v1/files/{sent['id']}")
    for path in ("", "/content"):
        found = error(desk.http.get(f"/v1/files/{sent['id']}{path}"), 404)
        assert found["message"] == f"No file found with id '{sent['id']}'."
    assert not (desk.office.process.settings.files / sent["id"]).exists()


@pytest.mark.parametrize(
    ("name", "content", "form", "param", "message"),
    [
        ("in.jsonl", b"", {"purpose": "batch"}, "file", "Invalid file format: the file is empty."),
        ("in.csv", b"x", {"purpose": "batch"}, "file", "Invalid file format for Batch API. Must be .jsonl"),
        ("in.jsonl", b"x", {"purpose": "assistants"}, "purpose", "Invalid value: 'assistants'"),
        ("in.jsonl", b"x", {}, "purpose", "Missing required parameter: 'purpose'."),
        ("in.jsonl", b"x", {"purpose": "batch", "colour": "red"}, "colour", "Unknown parameter: 'colour'."),
        (
            "in.jsonl",
            b"x",
            {"purpose": "batch", "expires_after[anchor]": "created_at", "expires_after[seconds]": "5"},
            "expires_after.seconds",
            "'expires_after.seconds' must be an integer from 3600 to 2592000.",
        ),
    ],
)
def test_uploads_that_are_refused(
    desk: Desk, name: str, content: bytes, form: dict[str, str], param: str, message: str
) -> None:
    found = error(desk.http.post("/v1/files", files={"file": (name, content)}, data=form), 400)
    assert found["message"].startswith(message)
    assert (found["type"], found["param"]) == ("invalid_request_error", param)
    assert list((desk.office.process.settings.files).glob("file-*")) == []


def test_a_file_that_is_too_large(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(desk.services.settings.__dict__, "openai_max_file_bytes", 10)
    sent = desk.http.post("/v1/files", files={"file": ("in.jsonl", b"x" * 11)}, data={"purpose": "batch"})
    assert error(sent, 413)["code"] == "file_too_large"


def test_pages_of_files(desk: Desk) -> None:
    ids = [desk.send([REQUEST]) for _ in range(3)]
    page = desk.http.get("/v1/files", params={"limit": 2}).json()
    assert (page["object"], page["has_more"]) == ("list", True)
    assert (page["first_id"], page["last_id"]) == (ids[2], ids[1])
    page = desk.http.get("/v1/files", params={"limit": 2, "after": ids[1]}).json()
    assert ([each["id"] for each in page["data"]], page["has_more"]) == (ids[:1], False)
    page = desk.http.get("/v1/files", params={"order": "asc"}).json()
    assert [each["id"] for each in page["data"]] == ids
    empty = desk.http.get("/v1/files", params={"purpose": "batch_output"}).json()
    assert empty == {"object": "list", "data": [], "first_id": None, "last_id": None, "has_more": False}
    assert error(desk.http.get("/v1/files", params={"after": "file-x"}), 400)["param"] == "after"
    assert error(desk.http.get("/v1/files", params={"limit": 0}), 400)["param"] == "limit"


def test_files_expire(desk: Desk) -> None:
    file_id = desk.send([REQUEST])
    with desk.office.sessions.begin() as session:
        session.execute(update(OpenAIFile).values(expires_at=1.0))
    assert desk.http.get(f"/v1/files/{file_id}").status_code == 404
    desk.keeper.keep()
    assert not (desk.office.process.settings.files / file_id).exists()


def test_outputs_expire_when_the_batch_says_so(desk: Desk) -> None:
    done = desk.run([REQUEST], output_expires_after={"anchor": "created_at", "seconds": 3600})
    file = desk.http.get(f"/v1/files/{done['output_file_id']}").json()
    assert file["expires_at"] - file["created_at"] == 3600
    desk.http.delete(f"/v1/files/{file['id']}")
    assert desk.http.get(f"/v1/files/{file['id']}/content").status_code == 404


# -- batches -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "param", "code"),
    [
        ({"endpoint": "/v1/embeddings"}, "endpoint", "invalid_value"),
        ({"endpoint": "/v1/nothing"}, "endpoint", "invalid_value"),
        ({"completion_window": "1h"}, "completion_window", "invalid_value"),
        ({"input_file_id": "file-none"}, "input_file_id", "invalid_request"),
        ({"metadata": {f"k{i}": "v" for i in range(17)}}, "metadata", "invalid_value"),
        ({"metadata": {"k": "v" * 513}}, "metadata.k", "string_above_max_length"),
        (
            {"output_expires_after": {"anchor": "created_at", "seconds": 1}},
            "output_expires_after.seconds",
            "invalid_value",
        ),
        ({"priority": 3}, "priority", "unknown_parameter"),
        ({"endpoint": None}, "endpoint", "invalid_type"),
    ],
)
def test_batches_that_are_refused(desk: Desk, change: dict[str, Any], param: str, code: str) -> None:
    asked = {"input_file_id": desk.send([REQUEST]), "endpoint": ENDPOINT, "completion_window": "24h", **change}
    found = error(desk.http.post("/v1/batches", json=asked), 400)
    assert (found["type"], found["param"], found["code"]) == ("invalid_request_error", param, code)


def test_metadata_of_a_wrong_type(desk: Desk) -> None:
    asked = {"input_file_id": "file-x", "endpoint": ENDPOINT, "completion_window": "24h", "metadata": {"tags": ["a"]}}
    assert desk.http.post("/v1/batches", json=asked).json()["error"] == {
        "message": "Invalid type for 'metadata.tags': expected a string, but got an array instead.",
        "type": "invalid_request_error",
        "param": "metadata.tags",
        "code": "invalid_type",
    }


def test_a_missing_parameter(desk: Desk) -> None:
    found = error(desk.http.post("/v1/batches", json={"endpoint": ENDPOINT, "completion_window": "24h"}), 400)
    assert (found["param"], found["code"]) == ("input_file_id", "missing_required_parameter")


@pytest.mark.parametrize(("method", "path"), [("GET", ""), ("POST", "/cancel")])
def test_no_such_batch(desk: Desk, method: str, path: str) -> None:
    found = error(desk.http.request(method, f"/v1/batches/batch_x{path}"), 404)
    assert (found["message"], found["type"]) == ("No batch found with id 'batch_x'.", "invalid_request_error")


@pytest.mark.parametrize("database", ["sqlite", "postgres"], indirect=True)
def test_a_character_that_no_database_keeps(desk: Desk) -> None:
    assert desk.http.get("/v1/batches/batch_%00").status_code in (400, 404)
    assert desk.http.get("/v1/files/file-%00").status_code in (400, 404)


def test_pages_of_batches(desk: Desk) -> None:
    file_id = desk.send([REQUEST])
    ids = [desk.create(file_id)["id"] for _ in range(3)]
    page = desk.http.get("/v1/batches", params={"limit": 2}).json()
    assert [each["id"] for each in page["data"]] == [ids[2], ids[1]]
    assert (page["first_id"], page["last_id"], page["has_more"]) == (ids[2], ids[1], True)
    page = desk.http.get("/v1/batches", params={"after": ids[1]}).json()
    assert ([each["id"] for each in page["data"]], page["has_more"]) == (ids[:1], False)
    assert error(desk.http.get("/v1/batches", params={"limit": 101}), 400)["param"] == "limit"
    assert error(desk.http.get("/v1/batches", params={"after": "batch_x"}), 400)["param"] == "after"


def test_a_key_gives_the_same_batch_again(desk: Desk) -> None:
    asked = {"input_file_id": desk.send([REQUEST]), "endpoint": ENDPOINT, "completion_window": "24h"}
    key = {"Idempotency-Key": "night-1"}
    first, second = (desk.http.post("/v1/batches", json=asked, headers=key).json() for _ in range(2))
    assert first["id"] == second["id"]
    other = desk.http.post("/v1/batches", json={**asked, "metadata": {"a": "b"}}, headers=key)
    assert error(other, 409)["code"] == "idempotency_conflict"
    assert other.headers["x-should-retry"] == "false"


def test_the_database_is_away(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OperationalError("SELECT 1", {}, Exception("connection refused"))

    monkeypatch.setattr("api.openai.batches.openai_batches.get", refuse)
    answer = desk.http.get("/v1/batches/batch_x")
    assert (error(answer, 503)["type"], answer.headers["retry-after"]) == ("server_error", "5")
    monkeypatch.setattr("api.openai.batches.openai_batches.get", lambda *_: 1 / 0)
    assert "division" not in error(desk.http.get("/v1/batches/batch_x"), 500)["message"]
