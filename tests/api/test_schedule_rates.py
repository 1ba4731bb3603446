"""What makes work of schedules counts against the key's rate, as submissions do; what makes none is never refused."""

from __future__ import annotations

from sqlalchemy import update

from db.accounts import ApiKey
from db.session import db_now
from tests.api.gate import Gate
from tests.api.ledger import write
from tests.api.test_dashboard import token
from tests.api.test_schedules import nightly

DATES = {"first": "2026-03-01", "last": "2026-03-02"}


def exhaust(gate: Gate) -> None:
    """No key may submit anything for an hour."""
    with gate.sessions.begin() as session:
        session.execute(update(ApiKey).values(submissions=0.0, submissions_at=db_now() + 3600))


def test_calls_count(gate: Gate) -> None:
    folder = gate.folder / "acme"
    write(folder / "2026-03-01.parquet", 3)
    body = nightly(folder)
    assert gate.call("acme submit", "POST", "/v1/schedules", json=body).status_code == 201
    exhaust(gate)
    for path, sent in (
        ("/v1/schedules", {**body, "name": "another"}),
        ("/v1/schedules/nightly/run", None),
        ("/v1/schedules/nightly/backfill", DATES),
    ):
        refused = gate.call("acme submit", "POST", path, json=sent)
        assert (refused.status_code, refused.json().get("code")) == (429, "rate_exceeded"), path
        assert int(refused.headers["retry-after"]) > 0
    assert len(gate.call("acme read", "GET", "/v1/schedules").json()["schedules"]) == 1
    assert gate.call("acme read", "GET", "/v1/schedules/nightly/runs").json()["runs"] == []
    for action in ("pause", "resume"):
        assert gate.call("acme submit", "POST", f"/v1/schedules/nightly/{action}").status_code == 200
    assert gate.call("acme submit", "DELETE", "/v1/schedules/nightly").status_code == 204


def test_forms_count(gate: Gate) -> None:
    http, folder = gate.http, gate.folder / "acme"
    assert gate.call("acme submit", "POST", "/v1/schedules", json=nightly(folder)).status_code == 201
    http.post("/sign-in", data={"key": gate.secrets["acme submit"]})
    form = {"form_token": token(http.get("/new-schedule").text), "name": "another", "cron": "30 2 * * *", **DATES}
    form |= {"recipe": "summarize", "input": str(folder / "{{ ds }}.parquet"), "output": str(folder / "o" / "{{ ds }}")}
    exhaust(gate)
    for path, status in (
        ("/new-schedule", 422),
        ("/schedules/nightly/run", 409),
        ("/schedules/nightly/backfill", 409),
    ):
        refused = http.post(path, data=form)
        assert (refused.status_code, "a key may submit 20 times a minute" in refused.text) == (status, True), path
    assert gate.call("acme read", "GET", "/v1/schedules/nightly/runs").json()["runs"] == []
    for action in ("pause", "resume", "delete"):
        assert http.post(f"/schedules/nightly/{action}", data=form).status_code == 200, action
