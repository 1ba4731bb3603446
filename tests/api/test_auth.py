"""Keys: who is let in, and what another tenant is told, namely nothing."""

from __future__ import annotations

from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from api.app import exposed, serve
from api.auth import AuthRequired
from db import keys
from db.accounts import ApiKey, Role, Tenant
from db.session import db_now
from db.settings import Settings
from tests.api.conftest import MemoryQueue
from tests.api.gate import MISSING, ROUTES, Gate
from tests.api.ledger import summarize, write

OPEN = {("GET", "/healthz"), ("GET", "/readyz")}


def documented(gate: Gate) -> list[tuple[str, str]]:
    paths = gate.http.get("/openapi.json").json()["paths"]
    return [(method.upper(), path) for path, methods in paths.items() for method in methods]


@pytest.mark.parametrize("secret", [None, f"nm_{'a' * 43}", "nm_x", ""])
def test_without_a_good_key_no_route_says_anything(gate: Gate, secret: str | None) -> None:
    headers = {} if secret is None else {"Authorization": f"Bearer {secret}"}
    routes = {*documented(gate), ("GET", "/metrics")} - OPEN
    assert len(routes) > len(ROUTES) > 15
    for method, path in routes:
        answer = gate.http.request(method, path, headers=headers)
        assert answer.status_code == 401, (method, path)
        assert "Authorization: Bearer nm_" in answer.text
    for method, path in OPEN:
        assert gate.http.request(method, path, headers=headers).status_code == 200


def test_an_answer_without_a_key_is_a_problem(gate: Gate) -> None:
    answer = gate.call(None, "GET", "/v1/jobs")
    assert (answer.status_code, answer.json()["code"]) == (401, "unauthenticated")
    assert answer.headers["www-authenticate"] == "Bearer"
    assert gate.http.get("/v1/jobs", headers={"Authorization": "Basic eDp5"}).status_code == 401


@pytest.mark.parametrize(
    ("who", "allowed"), [("acme read", False), ("acme submit", True), ("acme admin", True)]
)  # fmt: skip
def test_what_a_role_may_do(gate: Gate, who: str, allowed: bool) -> None:
    job = gate.submit("acme submit")["id"]
    for path in (f"/v1/jobs/{job}", "/v1/jobs", f"/v1/jobs/{job}/results"):
        assert gate.call(who, "GET", path).status_code == 200
    writing = ["/v1/uploads", *(f"/v1/jobs/{job}/{change}" for change in ("pause", "resume", "cancel", "retry"))]
    statuses = {gate.call(who, "POST", path).status_code for path in writing}
    assert (403 not in statuses) if allowed else (statuses == {403})
    answer = gate.call("acme read", "POST", f"/v1/jobs/{MISSING}/cancel")
    assert (answer.status_code, answer.json()["code"]) == (403, "forbidden")


def test_what_is_about_all_tenants_is_for_the_operator(gate: Gate) -> None:
    for path in ("/v1/workers", "/metrics"):
        assert gate.call("acme admin", "GET", path).status_code == 403
        assert gate.call("default read", "GET", path).status_code == 200


def test_a_job_of_another_tenant_looks_as_one_that_is_not_there(gate: Gate) -> None:
    job = gate.submit("acme submit")["id"]
    for method, path in ROUTES:
        if MISSING in path:
            foreign = gate.call("bolt admin", method, path.replace(MISSING, job))
            absent = gate.call("bolt admin", method, path)
            assert foreign.status_code == 404
            assert foreign.text.replace(job, MISSING) == absent.text
    assert gate.call("bolt admin", "GET", "/v1/jobs").json() == {"jobs": [], "next": None}
    assert gate.call("default admin", "GET", "/v1/jobs").json() == {"jobs": [], "next": None}
    assert gate.call("bolt admin", "GET", f"/v1/jobs?after={job}").status_code == 404
    assert gate.call("acme read", "GET", f"/v1/jobs/{job}").json()["status"] == "validating"


def test_an_idempotency_key_belongs_to_its_tenant(gate: Gate) -> None:
    first = gate.submit("acme submit", idempotency_key="nightly")["id"]
    second = gate.submit("bolt submit", idempotency_key="nightly")["id"]
    assert first != second
    assert gate.submit("acme submit", idempotency_key="nightly")["id"] == first


def test_uploads_and_default_results_lie_under_the_tenants_own_folder(gate: Gate, api_settings: Settings) -> None:
    own = api_settings.home / "tenants" / "acme"
    content = write(gate.folder / "acme" / "in.parquet", 3).read_bytes()
    upload = gate.call("acme submit", "POST", "/v1/uploads", content=content).json()
    assert [path.name for path in (own / "uploads").iterdir()] == [f"{upload['id']}.parquet"]
    job = gate.call("acme submit", "POST", "/v1/jobs", json=summarize(Path("x")) | {"input": upload["uri"]}).json()
    assert job["output"] == str(own / "data" / job["id"])
    foreign = gate.call("bolt submit", "POST", "/v1/jobs", json=summarize(Path("x")) | {"input": upload["uri"]})
    assert (foreign.status_code, foreign.json()["code"]) == (422, "upload_not_found")


def test_a_key_ends_when_it_is_revoked_or_expires_or_its_tenant_is_disabled(gate: Gate) -> None:
    with gate.sessions.begin() as session:
        made = keys.create(session, "acme", role=Role.READ, name="short", expires_seconds=3600)
    gate.secrets["short"] = made.secret
    assert gate.call("short", "GET", "/v1/jobs").status_code == 200
    with gate.sessions.begin() as session:
        session.get_one(ApiKey, made.key.id).expires_at = db_now() - 1
    assert gate.call("short", "GET", "/v1/jobs").status_code == 401
    with gate.sessions.begin() as session:
        key = next(key for key in keys.listing(session, "acme") if key.role is Role.READ)
        keys.revoke(session, key.id, "acme")
    assert gate.call("acme read", "GET", "/v1/jobs").status_code == 401
    with gate.sessions.begin() as session:
        session.get_one(Tenant, "bolt").disabled_at = db_now()
    assert gate.call("bolt read", "GET", "/v1/jobs").status_code == 401


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "nightmill.example"])
def test_the_api_does_not_listen_beyond_this_machine_without_keys(api_settings: Settings, host: str) -> None:
    with pytest.raises(AuthRequired, match=r"NIGHTMILL_AUTH=true.*nightmill keys create"):
        serve(api_settings.model_copy(update={"host": host}))


def test_without_keys_the_api_answers_to_this_machine_s_names_alone(api_settings: Settings) -> None:
    """A page whose own name points to 127.0.0.1 gets nothing from the browser of whoever opens it (DNS rebinding)."""
    ours = ["127.0.0.1:8642", "127.8.8.8", "LocalHost:1", "nightmill.localhost", "[::1]:8642"]
    others = [
        "evil.example:8642",
        "127.0.0.1.evil.example",
        "localhost.evil.example",
        "evil.example@127.0.0.1",
        "",
        "[",
    ]
    with TestClient(exposed(api_settings, MemoryQueue())) as http:
        answers = {host: http.get("/v1/jobs", headers={"Host": host}) for host in [*ours, *others]}
    assert {host: answer.status_code for host, answer in answers.items()} == {
        **dict.fromkeys(ours, 200),
        **dict.fromkeys(others, 421),
    }
    problem = answers["evil.example:8642"].json()
    assert (problem["code"], "NIGHTMILL_AUTH=true" in problem["detail"]) == ("other_host", True)
    with TestClient(exposed(api_settings.model_copy(update={"auth": True}), MemoryQueue())) as http:
        assert http.get("/healthz", headers={"Host": "nightmill.example"}).status_code == 200
