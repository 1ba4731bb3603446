"""Files that come in parts."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import update

from api.app import create_app
from api.openai import uploads
from db import openai_files
from db.openai_models import OpenAIUpload
from db.settings import Settings
from tests.api.conftest import MemoryQueue
from tests.api.gate import Gate
from tests.api.openai.office import Desk
from tests.api.openai.rig import chat, jsonl
from tests.api.openai.test_wire import error

CONTENT = jsonl([chat("a", "one"), chat("b", "two")])


def begin(desk: Desk, **change: Any) -> Any:
    asked = {
        "bytes": len(CONTENT), "filename": "in.jsonl", "mime_type": "application/jsonl", "purpose": "batch", **change
    }  # fmt: skip
    return desk.http.post("/v1/uploads", json=asked)


def send(desk: Desk, upload_id: str, content: bytes) -> Any:
    return desk.http.post(f"/v1/uploads/{upload_id}/parts", files={"data": ("blob", content)})


def part(desk: Desk, upload_id: str, content: bytes) -> str:
    sent = send(desk, upload_id, content)
    assert (sent.status_code, sent.json()["object"], sent.json()["upload_id"]) == (200, "upload.part", upload_id)
    return str(sent.json()["id"])


def complete(desk: Desk, upload_id: str, parts: list[str], **more: Any) -> Any:
    return desk.http.post(f"/v1/uploads/{upload_id}/complete", json={"part_ids": parts, **more})


def test_parts_are_joined_in_the_order_given(desk: Desk) -> None:
    upload = begin(desk, expires_after={"anchor": "created_at", "seconds": 3600}).json()
    assert (upload["object"], upload["status"], upload["file"]) == ("upload", "pending", None)
    assert upload["expires_at"] - upload["created_at"] == 3600
    second = part(desk, upload["id"], CONTENT[100:])
    first = part(desk, upload["id"], CONTENT[:100])
    done = complete(desk, upload["id"], [first, second], md5=hashlib.md5(CONTENT).hexdigest()).json()
    assert (done["status"], done["file"]["bytes"]) == ("completed", len(CONTENT))
    assert done["file"]["expires_at"] - done["file"]["created_at"] == 3600
    assert desk.http.get(f"/v1/files/{done['file']['id']}/content").content == CONTENT
    assert desk.finish(desk.checked(desk.create(done["file"]["id"])["id"])["id"])["status"] == "completed"
    assert not (desk.services.settings.files / "parts" / upload["id"]).exists()
    assert error(complete(desk, upload["id"], [first, second]), 400)["code"] == "invalid_status"


def test_uploads_that_cannot_be_completed(desk: Desk) -> None:
    upload_id = begin(desk).json()["id"]
    whole = [short, _] = [part(desk, upload_id, CONTENT[:5]), part(desk, upload_id, CONTENT[5:])]
    assert error(complete(desk, upload_id, whole, md5="0" * 32), 400)["code"] == "checksum_mismatch"
    assert "have 5 bytes, not the" in error(complete(desk, upload_id, [short]), 400)["message"]
    assert error(complete(desk, upload_id, [short, short]), 400)["message"] == "A part is named twice."
    assert error(complete(desk, upload_id, ["part_x"]), 400)["param"] == "part_ids"
    assert error(complete(desk, "upload_x", whole), 404)["message"] == "No upload found with id 'upload_x'."
    assert list(desk.services.settings.files.glob("file-*")) == []
    assert complete(desk, upload_id, whole).json()["status"] == "completed"


def test_parts_have_at_most_twice_the_bytes_that_the_upload_said(desk: Desk) -> None:
    upload_id = begin(desk, bytes=100).json()["id"]
    assert error(send(desk, upload_id, b"x" * 101), 400)["param"] == "data"
    part(desk, upload_id, b"x" * 60)
    assert error(send(desk, upload_id, b"x" * 101), 400)["param"] == "data"
    part(desk, upload_id, b"x" * 100)
    told = error(send(desk, upload_id, b"x" * 41), 400)
    assert (told["code"], "more than 40 bytes" in told["message"]) == ("file_too_large", True)
    part(desk, upload_id, b"x" * 40)
    assert error(send(desk, upload_id, b"x"), 400)["code"] == "file_too_large"
    assert sorted(stored(desk)) == [40, 60, 100]


def test_a_part_whose_answer_was_lost_is_sent_again(desk: Desk) -> None:
    upload_id = begin(desk).json()["id"]
    part(desk, upload_id, CONTENT)
    assert complete(desk, upload_id, [part(desk, upload_id, CONTENT)]).json()["status"] == "completed"
    assert stored(desk) == []


@pytest.mark.parametrize("database", ["sqlite", "postgres"], indirect=True)
def test_parts_that_come_side_by_side_are_counted_together(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    upload_id = begin(desk, bytes=100).json()["id"]
    part(desk, upload_id, b"x" * 100)
    meanwhile(monkeypatch, lambda: part(desk, upload_id, b"x" * 60))
    assert "more than 40 bytes" in error(send(desk, upload_id, b"y" * 60), 400)["message"]
    assert sorted(stored(desk)) == [60, 100]


def test_a_part_of_an_upload_given_up_meanwhile_leaves_nothing(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    upload_id = begin(desk, bytes=100).json()["id"]
    meanwhile(monkeypatch, lambda: desk.http.post(f"/v1/uploads/{upload_id}/cancel"))
    assert error(send(desk, upload_id, b"x"), 400)["code"] == "invalid_status"
    assert stored(desk) == []


def test_parts_are_bounded_in_number(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also those without bytes, of which any number would fit."""
    monkeypatch.setattr(uploads, "MAX_PARTS", 2)
    upload_id = begin(desk).json()["id"]
    for _ in range(2):
        part(desk, upload_id, b"")
    assert error(send(desk, upload_id, b""), 400)["code"] == "too_many_parts"
    assert len(stored(desk)) == 2


def test_parts_count_against_the_key_s_rate(api_settings: Settings, tmp_path: Path) -> None:
    changed = api_settings.model_copy(update={"auth": True, "submissions_per_minute": 1})
    with TestClient(create_app(changed, MemoryQueue())) as http:
        gate = Gate(http, http.app.state.services, tmp_path / "tenants")  # type: ignore[attr-defined]
        files = {"data": ("blob", b"x")}
        answers = [gate.call("acme submit", "POST", "/v1/uploads/upload_x/parts", files=files) for _ in range(2)]
    assert [answer.status_code for answer in answers] == [404, 429]
    assert 1 <= int(answers[1].headers["retry-after"]) <= 60


def meanwhile(monkeypatch: pytest.MonkeyPatch, act: Callable[[], Any]) -> None:
    """While a part is being stored, another call comes."""
    store, calls = openai_files.store, iter([act])

    def acting(*arguments: Any, **named: Any) -> int:
        next(calls, lambda: None)()
        return store(*arguments, **named)

    monkeypatch.setattr(openai_files, "store", acting)


def stored(desk: Desk) -> list[int]:
    """Sizes of the parts that lie on the disk."""
    return [path.stat().st_size for path in desk.services.settings.files.rglob("part_*")]


def test_an_upload_can_be_given_up(desk: Desk) -> None:
    upload_id = begin(desk).json()["id"]
    part_id = part(desk, upload_id, CONTENT)
    assert desk.http.post(f"/v1/uploads/{upload_id}/cancel").json()["status"] == "cancelled"
    assert error(complete(desk, upload_id, [part_id]), 400)["message"] == f"Upload '{upload_id}' is cancelled."
    assert not (desk.services.settings.files / "parts" / upload_id).exists()


def test_an_upload_expires(desk: Desk) -> None:
    upload_id = begin(desk).json()["id"]
    part_id = part(desk, upload_id, CONTENT)
    with desk.office.sessions.begin() as session:
        session.execute(update(OpenAIUpload).values(expires_at=1.0))
    assert error(complete(desk, upload_id, [part_id]), 400)["message"] == f"Upload '{upload_id}' is expired."
    desk.keeper.keep()
    assert not (desk.services.settings.files / "parts" / upload_id).exists()


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"purpose": "vision"}, "purpose"),
        ({"filename": "in.txt"}, "file"),
        ({"bytes": 10**12}, "bytes"),
        ({"bytes": "many"}, "bytes"),
        ({"colour": "red"}, "colour"),
    ],
)
def test_uploads_that_are_refused(desk: Desk, change: dict[str, Any], param: str) -> None:
    assert error(begin(desk, **change), 400)["param"] == param


def test_json_that_is_none(desk: Desk) -> None:
    sent = desk.http.post("/v1/uploads", content=b"{", headers={"Content-Type": "application/json"})
    assert error(sent, 400)["message"].startswith("The body is not JSON")


@pytest.mark.parametrize(
    ("content", "param", "words"),
    [(b"[]", "body", "Input should be"), (b"null", "body", "Input should be"), (b"[" * 100_000, None, "too deeply")],
)
def test_json_that_is_no_object(desk: Desk, content: bytes, param: str | None, words: str) -> None:
    sent = desk.http.post("/v1/uploads", content=content, headers={"Content-Type": "application/json"})
    told = error(sent, 400)
    assert (told["param"], words in told["message"]) == (param, True), told
