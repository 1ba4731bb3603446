"""Files that come in parts."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest
from sqlalchemy import update

from db.openai_models import OpenAIUpload
from tests.api.openai.office import Desk
from tests.api.openai.rig import chat, jsonl
from tests.api.openai.test_wire import error

CONTENT = jsonl([chat("a", "one"), chat("b", "two")])


def begin(desk: Desk, **change: Any) -> Any:
    asked = {
        "bytes": len(CONTENT), "filename": "in.jsonl", "mime_type": "application/jsonl", "purpose": "batch", **change
    }  # fmt: skip
    return desk.http.post("/v1/uploads", json=asked)


def part(desk: Desk, upload_id: str, content: bytes) -> str:
    sent = desk.http.post(f"/v1/uploads/{upload_id}/parts", files={"data": ("blob", content)})
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
    whole, short = part(desk, upload_id, CONTENT), part(desk, upload_id, CONTENT[:5])
    assert error(complete(desk, upload_id, [whole], md5="0" * 32), 400)["code"] == "checksum_mismatch"
    assert "have 5 bytes, not the" in error(complete(desk, upload_id, [short]), 400)["message"]
    assert error(complete(desk, upload_id, [whole, whole]), 400)["message"] == "A part is named twice."
    assert error(complete(desk, upload_id, ["part_x"]), 400)["param"] == "part_ids"
    assert error(complete(desk, "upload_x", [whole]), 404)["message"] == "No upload found with id 'upload_x'."
    too_long = desk.http.post(f"/v1/uploads/{upload_id}/parts", files={"data": ("blob", CONTENT + b"x")})
    assert error(too_long, 400)["param"] == "data"
    assert list(desk.services.settings.files.glob("file-*")) == []
    assert complete(desk, upload_id, [whole]).json()["status"] == "completed"


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
