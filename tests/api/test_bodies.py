"""How much of a body is read, and for whom."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, MutableMapping

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from api.app import create_app
from api.middleware import JSON_BYTES
from db.settings import Settings
from tests.api.conftest import MemoryQueue
from tests.api.gate import Gate

JSON, FORM, URLENCODED = "application/json", "multipart/form-data; boundary=B", "application/x-www-form-urlencoded"
OCTETS = "application/octet-stream"


@pytest.fixture
def keyless(api_settings: Settings) -> Iterator[TestClient]:
    """A caller without a key of an API that takes large files."""
    changed = api_settings.model_copy(update={"auth": True, "max_upload_bytes": 1 << 32})
    with TestClient(create_app(changed, MemoryQueue()), raise_server_exceptions=False) as http:
        yield http


@pytest.mark.parametrize("path", ["/v1/jobs", "/v1/uploads/upload_x/complete"])
def test_json_is_bounded_before_the_key_is_looked_at(keyless: TestClient, path: str) -> None:
    """A JSON body is read and parsed before the route's dependencies are asked: nobody may send more than its bound."""
    headers = {"Content-Type": JSON, "Content-Length": str(JSON_BYTES + 1)}
    assert keyless.post(path, content=b"{}", headers=headers).status_code == 413


@pytest.mark.parametrize(
    ("path", "kind", "status"),
    [
        ("/v1/uploads", JSON, 413),
        ("/v1/uploads", JSON.upper(), 413),
        ("/v1/uploads", OCTETS, 422),  # no Parquet
        ("/v1/uploads", URLENCODED, 422),  # what curl calls a body that it is given: a file as any other
        ("/v1/uploads", FORM, 422),
        ("/v1/files", FORM, 400),
        ("/v1/files", URLENCODED, 413),
        ("/v1/uploads/upload_x/parts", FORM, 400),
        ("/v1/uploads/upload_x/parts", URLENCODED, 413),
        ("/submit", FORM, 403),
        ("/submit", URLENCODED, 413),
    ],
)
def test_only_files_may_be_larger(api_settings: Settings, path: str, kind: str, status: int) -> None:
    app = create_app(api_settings.model_copy(update={"max_upload_bytes": 1 << 32}), MemoryQueue())
    with TestClient(app, raise_server_exceptions=False) as http:
        headers = {"Content-Type": kind, "Content-Length": str(JSON_BYTES + 1)}
        answer = http.post(path, content=b"--B--\r\n", headers=headers)
    assert answer.status_code == status, answer.text


@pytest.mark.parametrize(
    ("who", "origin", "status", "read"),
    [
        ("acme read", "http://testserver", 403, 0),
        ("acme submit", "https://elsewhere.example", 403, 0),
        ("acme submit", "http://testserver", 403, 2),  # only the form itself says that it has no token
    ],
)
def test_who_may_not_submit_has_no_form_read(gate: Gate, who: str, origin: str, status: int, read: int) -> None:
    headers = {
        "host": "testserver",
        "origin": origin,
        "cookie": f"nightmill_key={gate.secrets[who]}",
        "content-type": FORM,
    }
    assert isinstance(gate.http.app, FastAPI)
    pieces = [b'--B\r\nContent-Disposition: form-data; name="file"; filename="x"\r\n\r\nx', b"\r\n--B--\r\n"]
    assert asyncio.run(post(gate.http.app, "/submit", headers, pieces)) == (status, read)


async def post(app: FastAPI, path: str, headers: dict[str, str], pieces: list[bytes]) -> tuple[int, int]:
    """The answer's status, and how many pieces of the body were read for it."""
    read, status = 0, 0

    async def receive() -> dict[str, object]:
        nonlocal read
        read += 1
        return {"type": "http.request", "body": pieces[read - 1], "more_body": read < len(pieces)}

    async def send(message: MutableMapping[str, object]) -> None:
        nonlocal status
        status = int(str(message.get("status", status)))

    scope = {
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": "POST", "scheme": "http",
        "path": path, "raw_path": path.encode(), "query_string": b"", "root_path": "", "client": ("192.0.2.1", 5),
        "server": ("testserver", 80), "state": {},
        "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
    }  # fmt: skip
    await app(scope, receive, send)
    return status, read
