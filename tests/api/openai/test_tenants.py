"""With keys: everything of one tenant is 404 for another, and a key may do what its role says."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from api.app import create_app
from db import audit, keys
from db.accounts import Role, Tenant
from db.settings import Settings
from tests.api.conftest import MemoryQueue
from tests.api.openai.rig import chat, jsonl
from tests.api.openai.test_wire import error

BATCH = {"endpoint": "/v1/chat/completions", "completion_window": "24h"}
Secrets = dict[str, str]


@pytest.fixture
def http(tmp_path: Path, sqlite_url: str) -> Iterator[TestClient]:
    settings = Settings(home=tmp_path / "home", database_url=sqlite_url, auth=True)
    with TestClient(create_app(settings, MemoryQueue())) as client:
        yield client


@pytest.fixture
def secrets(http: TestClient) -> Secrets:
    services = http.app.state.services  # type: ignore[attr-defined]
    with services.sessions.begin() as session:
        for name in ("red", "blue"):
            session.add(Tenant(name=name, roots=[], created_at=0.0))
        session.flush()
        return {
            name: keys.create(session, tenant, name=name, role=role).secret
            for name, tenant, role in (
                ("red", "red", Role.SUBMIT), ("blue", "blue", Role.SUBMIT), ("reader", "red", Role.READ),
            )
        }  # fmt: skip


def test_what_is_another_tenants_is_not_there(http: TestClient, secrets: Secrets) -> None:
    red, blue, reader = ({"Authorization": f"Bearer {secrets[name]}"} for name in ("red", "blue", "reader"))
    sent = http.post(
        "/v1/files", files={"file": ("a.jsonl", jsonl([chat("a", "x")]))}, data={"purpose": "batch"}, headers=red
    ).json()
    batch = http.post("/v1/batches", json={**BATCH, "input_file_id": sent["id"]}, headers=red).json()
    parts = {"bytes": 5, "filename": "a.jsonl", "mime_type": "x", "purpose": "batch"}
    upload = http.post("/v1/uploads", json=parts, headers=red).json()
    for path in (f"/v1/files/{sent['id']}", f"/v1/files/{sent['id']}/content", f"/v1/batches/{batch['id']}"):
        assert http.get(path, headers=red).status_code == 200
        assert http.get(path, headers=reader).status_code == 200
        error(http.get(path, headers=blue), 404)
    error(http.get(f"/v1/files/{batch['nightmill']['partial_output_file_id']}/content", headers=blue), 404)
    error(http.delete(f"/v1/files/{sent['id']}", headers=blue), 404)
    error(http.post(f"/v1/batches/{batch['id']}/cancel", headers=blue), 404)
    error(http.post(f"/v1/uploads/{upload['id']}/cancel", headers=blue), 404)
    found = error(http.post("/v1/batches", json={**BATCH, "input_file_id": sent["id"]}, headers=blue), 400)
    assert found["param"] == "input_file_id"
    for path in ("/v1/files", "/v1/batches"):
        assert http.get(path, headers=blue).json()["data"] == []
        assert len(http.get(path, headers=red).json()["data"]) == 1


def test_what_a_key_may_do(http: TestClient, secrets: Secrets) -> None:
    reader = {"Authorization": f"Bearer {secrets['reader']}"}
    for path in ("/v1/batches", "/v1/chat/completions"):
        assert error(http.post(path, json=BATCH, headers=reader), 403)["type"] == "permission_error"
    assert error(http.get("/v1/batches"), 401)["type"] == "authentication_error"
    assert error(http.get("/v1/files", headers={"Authorization": "Bearer nm_wrong"}), 401)["code"] == "unauthenticated"
    refused = http.post("/v1/webhooks", json={"url": "https://example.org/"}, headers=reader)
    assert (refused.status_code, refused.json()["code"]) == (403, "forbidden")


def test_what_was_done_to_batches_is_in_the_audit_log(http: TestClient, secrets: Secrets) -> None:
    red, reader = ({"Authorization": f"Bearer {secrets[name]}"} for name in ("red", "reader"))
    files = {"file": ("a.jsonl", jsonl([chat("a", "x")]))}
    sent = http.post("/v1/files", files=files, data={"purpose": "batch"}, headers=red).json()
    body = {**BATCH, "input_file_id": sent["id"]}
    (batch,) = {http.post("/v1/batches", json=body, headers={**red, "Idempotency-Key": "k"}).json()["id"] for _ in "ab"}
    error(http.post(f"/v1/batches/{batch}/cancel", headers=reader), 403)
    assert http.post(f"/v1/batches/{batch}/cancel", headers=red).status_code == 200
    with http.app.state.services.sessions.begin() as session:  # type: ignore[attr-defined]
        found = [(entry.action, entry.thing) for entry in audit.listing(session, "red", limit=10)]
    assert [entry for entry in found if entry[0].startswith("batch.")] == [
        ("batch.cancel", batch),
        ("batch.create", batch),
    ]
