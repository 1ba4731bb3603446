"""The audit log has what is done through the OpenAI face and to webhooks and plans: who, with which key, to what."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import select

from api.app import create_app
from db import audit
from db.accounts import AuditEntry
from db.models import Job
from db.settings import Settings
from tests.api.conftest import MemoryQueue
from tests.api.gate import Gate
from tests.api.ledger import summarize, write
from tests.api.openai.office import Desk
from tests.api.openai.rig import chat, jsonl

WHO = "acme submit"
PARTS = {"bytes": 3, "filename": "a.jsonl", "mime_type": "x", "purpose": "batch"}


def entries(gate: Gate) -> list[AuditEntry]:
    """Oldest first; all of them by a key."""
    with gate.sessions.begin() as session:
        found = audit.listing(session, "acme", limit=100)[::-1]
    assert all(entry.key_id is not None and entry.address == "testclient" for entry in found)
    return found


def noted(gate: Gate) -> list[tuple[str, str]]:
    return [(entry.action, entry.thing) for entry in entries(gate)]


def done(gate: Gate, method: str, path: str, who: str = WHO, **more: Any) -> Any:
    answer = gate.call(who, method, path, **more)
    assert answer.is_success, answer.text
    return answer.json() if answer.content.startswith(b"{") else None


def test_files(gate: Gate) -> None:
    lines = jsonl([chat("a", "x")])
    sent = done(gate, "POST", "/v1/files", files={"file": ("a.jsonl", lines)}, data={"purpose": "batch"})["id"]
    done(gate, "GET", f"/v1/files/{sent}/content", "acme read")
    assert gate.call("bolt submit", "GET", f"/v1/files/{sent}/content").status_code == 404
    done(gate, "DELETE", f"/v1/files/{sent}")
    assert gate.call(WHO, "GET", f"/v1/files/{sent}/content").status_code == 404
    assert noted(gate) == [("file.create", sent), ("file.download", sent), ("file.delete", sent)]
    assert entries(gate)[0].details == {"bytes": len(lines)}


def test_uploads_in_parts(gate: Gate) -> None:
    first, second = (done(gate, "POST", "/v1/uploads", json=PARTS)["id"] for _ in range(2))
    part = done(gate, "POST", f"/v1/uploads/{first}/parts", files={"data": ("x", b"{}\n")})["id"]
    file = done(gate, "POST", f"/v1/uploads/{first}/complete", json={"part_ids": [part]})["file"]["id"]
    done(gate, "POST", f"/v1/uploads/{second}/cancel")
    assert noted(gate) == [
        ("upload.begin", first),
        ("upload.begin", second),
        ("file.create", file),
        ("upload.complete", first),
        ("upload.cancel", second),
    ]


def test_webhooks(gate: Gate) -> None:
    body = {"url": "https://hook.example/services/secret?token=secret"}
    made = done(gate, "POST", "/v1/webhooks", "acme admin", json=body)["id"]
    done(gate, "DELETE", f"/v1/webhooks/{made}", "acme admin")
    assert noted(gate) == [("webhook.create", made), ("webhook.delete", made)]
    assert entries(gate)[0].details == {"host": "hook.example"}


def test_plans(gate: Gate) -> None:
    path = write(gate.folder / "acme" / "in.parquet", 3)
    plan = done(gate, "POST", "/v1/jobs?dry_run=true", json=summarize(path))["id"]
    assert noted(gate) == [("plan.create", plan)]


def test_the_output_of_a_batch(desk: Desk) -> None:
    batch = desk.run([chat("a", "x")])
    job, output = batch["nightmill"]["job_id"], batch["output_file_id"]
    assert desk.http.get(f"/v1/files/{output}/content").status_code == 200
    with desk.services.sessions.begin() as session:
        newest = audit.listing(session, "default", limit=1)[0]
    assert (newest.action, newest.thing, newest.details) == ("file.download", output, {"job": job})


@pytest.fixture
def hasty(tmp_path: Path, sqlite_url: str) -> Iterator[Gate]:
    """Nobody answers a call, so it gives up soon."""
    settings = Settings(home=tmp_path / "home", database_url=sqlite_url, sweep_seconds=3600, auth=True)
    settings = settings.model_copy(update={"openai_timeout_seconds": 0.05})
    with TestClient(create_app(settings, MemoryQueue())) as http:
        yield Gate(http, http.app.state.services, tmp_path / "tenants")  # type: ignore[attr-defined]


def test_single_answers(hasty: Gate) -> None:
    body = {"model": "m", "messages": [{"role": "user", "content": "a secret"}]}
    assert hasty.call(WHO, "POST", "/v1/chat/completions", json=body).status_code == 504
    with hasty.sessions.begin() as session:
        (job,) = session.scalars(select(Job)).all()
    (stored, asked) = entries(hasty)
    assert (stored.action, asked.action, asked.thing) == ("upload.create", "completion.create", job.id)
    assert asked.details == {"model": "m"}
    assert asked.key_id == stored.key_id


def test_rows_on_the_page_of_a_job(desk: Desk) -> None:
    """A live page that asks again how far the job is gets no rows, and is no entry."""
    job = desk.run([chat("a", "x")])["nightmill"]["job_id"]

    def views() -> list[str]:
        with desk.services.sessions.begin() as session:
            found = audit.listing(session, "default", limit=100)
        return [entry.thing for entry in found if entry.action == "result.view"]

    assert "No part is finished yet." in desk.http.get(f"/jobs/{job}", headers={"HX-Request": "true"}).text
    assert views() == []
    assert "No part is finished yet." not in desk.http.get(f"/jobs/{job}").text
    assert views() == [job]
