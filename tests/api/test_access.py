"""Keys, tenants, quotas, rates and the audit log, as admins see them."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from sqlalchemy import text
from sqlalchemy.exc import DatabaseError

from db import audit
from db.audit import Actor
from tests.api.conftest import MemoryQueue
from tests.api.gate import ROUTES, Gate
from tests.api.ledger import eventually, summarize


def test_an_admin_makes_lists_and_revokes_the_keys_of_its_tenant(gate: Gate) -> None:
    made = gate.call("acme admin", "POST", "/v1/keys", json={"name": "nightly", "role": "submit"}).json()
    assert made["secret"].startswith(made["key"]["prefix"])
    assert (made["key"]["tenant"], made["key"]["role"], made["key"]["expires_at"]) == ("acme", "submit", None)
    gate.secrets["new"] = made["secret"]
    gate.submit("acme submit")
    assert gate.call("new", "GET", "/v1/jobs").status_code == 200
    listed = gate.call("acme admin", "GET", "/v1/keys")
    assert made["secret"] not in listed.text
    assert {key["tenant"] for key in listed.json()["keys"]} == {"acme"}
    path = f"/v1/keys/{made['key']['id']}/revoke"
    assert gate.call("bolt admin", "POST", path).status_code == 404
    assert gate.call("acme admin", "POST", path).json()["revoked_at"] is not None
    assert gate.call("new", "GET", "/v1/jobs").status_code == 401


@pytest.mark.parametrize("who", ["acme read", "acme submit"])
def test_keys_are_for_admins(gate: Gate, who: str) -> None:
    for method, path in [route for route in ROUTES if "/keys" in route[1] or "/audit" in route[1]]:
        assert gate.call(who, method, path, json={"name": "n", "role": "admin"}).status_code == 403


def test_other_tenants_are_the_operators_alone(gate: Gate) -> None:
    body = {"name": "n", "role": "admin", "tenant": "bolt"}
    for who in ("acme admin", "default read", "default submit"):
        assert gate.call(who, "POST", "/v1/keys", json=body).status_code == 403
        assert gate.call(who, "GET", "/v1/tenants").status_code == 403
        assert gate.call(who, "POST", "/v1/tenants", json={"name": "new"}).status_code == 403
        assert gate.call(who, "PATCH", "/v1/tenants/bolt", json={"disabled": True}).status_code == 403
    assert gate.call("acme admin", "GET", "/v1/keys?tenant=bolt").status_code == 403
    assert gate.call("acme admin", "GET", "/v1/audit?tenant=bolt").status_code == 403
    assert gate.call("default admin", "POST", "/v1/keys", json=body).json()["key"]["tenant"] == "bolt"
    assert {key["tenant"] for key in gate.call("default admin", "GET", "/v1/keys").json()["keys"]} > {"acme", "bolt"}


def test_the_operator_makes_changes_and_disables_tenants(gate: Gate) -> None:
    made = gate.call("default admin", "POST", "/v1/tenants", json={"name": "coil", "max_running_jobs": 2})
    assert (made.status_code, made.json()["max_running_jobs"], made.json()["roots"]) == (201, 2, [])
    again = gate.call("default admin", "POST", "/v1/tenants", json={"name": "coil"})
    assert (again.status_code, again.json()["code"], again.json()["field"]) == (422, "invalid_tenant", "name")
    changed = gate.call("default admin", "PATCH", "/v1/tenants/coil", json={"max_queued_rows": 5}).json()
    assert (changed["max_queued_rows"], changed["max_running_jobs"]) == (5, 2)
    assert gate.call("default admin", "PATCH", "/v1/tenants/nobody", json={}).status_code == 404
    gate.call("default admin", "PATCH", "/v1/tenants/bolt", json={"disabled": True})
    assert gate.call("bolt admin", "GET", "/v1/jobs").status_code == 401
    gate.call("default admin", "PATCH", "/v1/tenants/bolt", json={"disabled": False})
    assert gate.call("bolt admin", "GET", "/v1/jobs").status_code == 200
    # Folders are given on the server's own command line alone.
    assert gate.call("default admin", "PATCH", "/v1/tenants/bolt", json={"roots": ["/"]}).status_code == 422


@pytest.mark.parametrize("name", ["", "-a", "A", "a/b", "..", "a.b", "a" * 64, "ü", "a\0b"])
def test_a_tenants_name_is_a_folders_name(gate: Gate, name: str) -> None:
    assert gate.call("default admin", "POST", "/v1/tenants", json={"name": name}).status_code == 422


def test_rows_beyond_the_quota_are_refused_until_some_are_done(gate: Gate) -> None:
    gate.call("default admin", "PATCH", "/v1/tenants/acme", json={"max_queued_rows": 5})
    first = gate.submit("acme submit")["id"]
    path = str(gate.folder / "acme" / "in.parquet")
    answer = gate.call("acme submit", "POST", "/v1/jobs", json={"input": path, "recipe": {"kind": "summarize"}})
    assert (answer.status_code, answer.json()["code"]) == (429, "quota_exceeded")
    assert "3 rows and the 3 that wait already are more than the tenant's quota of 5" in answer.json()["detail"]
    gate.submit("acme submit", max_rows=2)
    gate.submit("bolt submit")
    gate.call("acme submit", "POST", f"/v1/jobs/{first}/cancel")
    gate.submit("acme submit")


def test_tokens_are_estimated_from_the_footer_and_bounded(gate: Gate) -> None:
    path = gate.folder / "acme" / "long.parquet"
    texts = [f"{i:04d}" * 100 for i in range(100)]  # 40 kB of text that no dictionary shortens
    pq.write_table(pa.table({"text": texts, "other": texts}), path, compression="zstd")
    body = {**summarize(path), "sampling": {"max_tokens": 100}}
    gate.call("default admin", "PATCH", "/v1/tenants/acme", json={"max_queued_tokens": 19_000})
    answer = gate.call("acme submit", "POST", "/v1/jobs", json=body)
    assert (answer.status_code, answer.json()["code"]) == (429, "quota_exceeded")
    added = int(answer.json()["detail"].split("this job's ")[1].split(" tokens")[0].replace(",", ""))
    assert added == pytest.approx(100 * (400 / 4 + 100), rel=0.03)
    assert gate.call("acme submit", "POST", "/v1/jobs", json={**body, "max_rows": 90}).status_code == 202
    assert gate.call("acme submit", "POST", "/v1/jobs", json={**body, "max_rows": 10}).status_code == 429


def test_jobs_beyond_the_running_ones_wait(gate: Gate, queue: MemoryQueue) -> None:
    gate.call("default admin", "PATCH", "/v1/tenants/acme", json={"max_running_jobs": 2})
    ids = [gate.submit("acme submit")["id"] for _ in range(4)] + [gate.submit("bolt submit")["id"]]
    eventually(lambda: {wakeup.id for wakeup in queue.sent} == {ids[0], ids[1], ids[4]})
    gate.call("acme submit", "POST", f"/v1/jobs/{ids[0]}/cancel")
    eventually(lambda: {wakeup.id for wakeup in queue.sent} == {*ids[:3], ids[4]})


def test_a_key_that_submits_too_often_is_told_when_it_may_again(gate: Gate) -> None:
    path = str(gate.folder / "acme" / "in.parquet")
    statuses = []
    for _ in range(gate.per_minute + 1):
        answer = gate.call("acme submit", "POST", "/v1/jobs", json={"input": path, "recipe": {"kind": "summarize"}})
        statuses.append(answer.status_code)
    assert statuses == [422] * gate.per_minute + [429]  # What is refused counts too.
    assert (answer.json()["code"], 1 <= int(answer.headers["retry-after"]) <= 60) == ("rate_exceeded", True)
    assert gate.call("acme submit", "POST", "/v1/uploads").status_code == 429
    assert gate.call("acme submit", "GET", "/v1/jobs").status_code == 200
    gate.submit("acme admin")  # Another key has its own.
    with gate.sessions.begin() as session:
        session.execute(text("UPDATE api_keys SET submissions_at = submissions_at - 6"))  # A tenth of a minute.
    for _ in range(gate.per_minute // 10):
        assert gate.call("acme submit", "POST", "/v1/jobs", json={}).status_code == 422
    assert gate.call("acme submit", "POST", "/v1/jobs", json={}).status_code == 429


def test_what_was_done_is_in_the_audit_log(gate: Gate) -> None:
    job = gate.submit("acme submit")["id"]
    gate.call("acme submit", "POST", f"/v1/jobs/{job}/pause")
    gate.call("acme submit", "POST", f"/v1/jobs/{job}/cancel")
    gate.call("acme read", "POST", f"/v1/jobs/{job}/cancel")  # Refused: nothing was done.
    made = gate.call("acme admin", "POST", "/v1/keys", json={"name": "n", "role": "read"}).json()
    gate.submit("bolt submit")
    page = gate.call("acme admin", "GET", "/v1/audit?limit=3").json()
    rest = gate.call("acme admin", "GET", f"/v1/audit?before={page['next']}").json()
    entries = page["entries"] + rest["entries"]
    assert [(entry["action"], entry["thing"]) for entry in entries] == [
        ("key.create", made["key"]["id"]), ("job.cancel", job), ("job.pause", job), ("job.submit", job),
    ]  # fmt: skip
    keys = gate.call("acme admin", "GET", "/v1/keys").json()["keys"]
    submitter = next(key["id"] for key in keys if key["role"] == "submit")
    assert {(entry["tenant"], entry["address"]) for entry in entries} == {("acme", "testclient")}
    assert [entry["key_id"] == submitter for entry in entries] == [False, True, True, True]
    assert made["secret"] not in str(entries)
    everything = gate.call("default admin", "GET", "/v1/audit").json()["entries"]
    assert {entry["tenant"] for entry in everything} == {"acme", "bolt"}


def test_what_was_done_to_schedules_is_in_the_audit_log(gate: Gate) -> None:
    gate.submit("acme submit")
    job = summarize(gate.folder / "acme" / "in.parquet")
    schedule = {"name": "nightly", "cron": "30 2 * * *", "job": job}
    made = [gate.call("acme submit", "POST", "/v1/schedules", json=schedule).json()["id"] for _ in range(2)]
    run = "/v1/schedules/nightly/run"
    runs = [gate.call("acme submit", "POST", run, headers={"Idempotency-Key": "k"}).json()["id"] for _ in range(2)]
    for change in ("pause", "resume"):
        gate.call("acme submit", "POST", f"/v1/schedules/nightly/{change}")
    gate.call("acme read", "DELETE", "/v1/schedules/nightly")  # Refused: nothing was done.
    gate.call("acme submit", "DELETE", "/v1/schedules/nightly")
    entries = gate.call("acme admin", "GET", "/v1/audit").json()["entries"][:-1]
    assert [entry["action"] for entry in reversed(entries)] == [
        f"schedule.{what}" for what in ("create", "run", "pause", "resume", "delete")
    ]
    assert {(entry["thing"], entry["details"]["name"]) for entry in entries} == {(made[0], "nightly")}
    assert [entry["details"].get("run") for entry in entries if entry["action"] == "schedule.run"] == runs[:1]


def test_the_database_refuses_to_change_the_audit_log(gate: Gate) -> None:
    with gate.sessions.begin() as session:
        audit.record(session, Actor("acme", None, "here"), "job.submit", "job_1", rows=3)
    for statement in ("UPDATE audit SET thing = 'x'", "DELETE FROM audit"):
        with gate.sessions.begin() as session, pytest.raises(DatabaseError, match="neither changed nor deleted"):
            session.execute(text(statement))
    with gate.sessions.begin() as session:
        assert [entry.thing for entry in audit.listing(session, "acme", limit=9)] == ["job_1"]
