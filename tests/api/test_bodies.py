"""How much of a body is read, and for whom."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from fastapi.testclient import TestClient

from api.app import create_app
from api.middleware import JSON_BYTES
from db.settings import Settings
from tests.api.conftest import MemoryQueue

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
