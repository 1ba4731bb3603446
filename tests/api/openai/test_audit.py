"""The audit log has what is done through the OpenAI face and to webhooks and plans: who, with which key, to what."""

from __future__ import annotations

from typing import Any

from db import audit
from db.accounts import AuditEntry
from tests.api.gate import Gate
from tests.api.ledger import summarize, write

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
