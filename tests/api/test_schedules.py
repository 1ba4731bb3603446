"""Routes, client and commands of schedules."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from typer.testing import CliRunner

from api.cli import app as command_line
from api.cli import serving
from api.client import Client
from api.deps import Services
from tests.api.gate import Gate
from tests.api.ledger import eventually, summarize, write
from tests.api.test_client import Bridge

runner = CliRunner()


def nightly(folder: Path, **values: Any) -> dict[str, Any]:
    job = {"input": str(folder / "{{ ds }}.parquet"), "output": str(folder / "out" / "{{ ds }}")}
    return {"name": "nightly", "cron": "30 2 * * *", "job": {**job, "recipe": {"kind": "summarize"}}, **values}


def test_life_of_a_schedule(http: TestClient, tweets: Path) -> None:
    answer = http.post("/v1/schedules", json=nightly(tweets.parent, timezone="Europe/Berlin"))
    assert (answer.status_code, answer.headers["location"]) == (201, "/v1/schedules/nightly")
    made = answer.json()
    assert made["spec"]["job"]["model"] == "default-model"
    assert (made["paused"], made["runs"]) == (False, {})
    assert http.post("/v1/schedules", json=nightly(tweets.parent, timezone="Europe/Berlin")).json() == made
    taken = http.post("/v1/schedules", json=nightly(tweets.parent))
    assert (taken.status_code, taken.json()["code"]) == (409, "schedule_exists")
    assert http.get("/v1/schedules").json()["schedules"] == [made]
    assert http.get(f"/v1/schedules/{made['id']}").json() == made
    assert http.post("/v1/schedules/nightly/pause").json()["paused"] is True
    assert http.post("/v1/schedules/nightly/resume").json()["paused"] is False
    assert http.delete("/v1/schedules/nightly").status_code == 204
    assert http.get("/v1/schedules/nightly").json()["code"] == "schedule_not_found"


def test_run_now_becomes_a_job(http: TestClient, tweets: Path, services: Services) -> None:
    made = nightly(tweets.parent, job=summarize(tweets))  # no output: a folder of the service
    assert http.post("/v1/schedules", json=made).status_code == 201
    runs = [http.post("/v1/schedules/nightly/run", headers={"Idempotency-Key": "k"}).json() for _ in range(2)]
    assert runs[0]["id"] == runs[1]["id"]
    assert (runs[0]["trigger"], runs[0]["status"]) == ("manual", "waiting")
    services.sweeper.sweep()
    eventually(lambda: bool(http.get("/v1/schedules/nightly/runs").json()["runs"][0]["job_id"]))
    page = http.get("/v1/schedules/nightly/runs").json()
    assert page["next"] is None
    assert [(run["status"], run["rows"]) for run in page["runs"]] == [("validating", 3)]
    job = http.get(f"/v1/jobs/{page['runs'][0]['job_id']}").json()
    assert job["spec"]["input"] == str(tweets)
    assert http.get("/v1/schedules/nightly").json()["runs"] == {"validating": 1}


def test_history_comes_in_pages(http: TestClient, tweets: Path) -> None:
    http.post("/v1/schedules", json=nightly(tweets.parent))
    body = {"first": "2026-03-01", "last": "2026-03-05"}
    added = http.post("/v1/schedules/nightly/backfill", json=body)
    assert (added.status_code, len(added.json()["runs"]), added.json()["known"]) == (202, 5, 0)
    again = http.post("/v1/schedules/nightly/backfill", json=body).json()
    assert len(again["runs"]) + again["known"] == 5  # runs whose input was missing are tried again
    with Client("http://test", transport=Bridge(http)) as client:
        runs = list(client.schedules.runs("nightly", limit=3))
    assert [run.logical_date for run in runs] == ["2026-03-05", "2026-03-04", "2026-03-03"]
    first = http.get("/v1/schedules/nightly/runs", params={"limit": 2}).json()
    rest = http.get("/v1/schedules/nightly/runs", params={"limit": 9, "before": first["next"]}).json()
    dates = [run["logical_date"] for run in first["runs"] + rest["runs"]]
    assert dates == [f"2026-03-0{day}" for day in (5, 4, 3, 2, 1)]


@pytest.mark.parametrize(
    ("change", "field", "code"),
    [
        ({"cron": "61 2 * * *"}, "cron", "invalid_schedule"),
        ({"timezone": "Berlin"}, "timezone", "invalid_schedule"),
        ({"name": "a b"}, "name", "invalid_request"),
        ({"overlap": "both"}, "overlap", "invalid_request"),
        ({"start_at": "2030-01-01T00:00:00"}, "start_at", "invalid_request"),
        ({"retries": 3}, "retries", "invalid_request"),
        ({"job": {"recipe": {"kind": "label"}}}, "job.recipe.labels", "invalid_request"),
        ({"job": {"recipe": {"kind": "generate", "template": "{% macro x %}"}}}, "job.recipe.template", "invalid_job"),
        ({"job": {"recipe": {"kind": "summarize", "column": "body"}}}, "job.recipe.column", "no_column"),
        ({"job": {"input": "/etc/{{ ds }}"}}, "job.input", "dataset_refused"),
        ({"job": {"input": "/etc/{{ nights }}"}}, "job.input", "invalid_schedule"),
        ({"job": {"output": "/etc/{{ ds }}"}}, "job.output", "dataset_refused"),
        ({"job": {"idempotency_key": "k"}}, "job.idempotency_key", "invalid_job"),
        ({"job": {"only_new": {"key": "nothing"}}}, "job.only_new.key", "no_column"),
        ({"job": {"only_new": {}, "max_rows": 3}}, "job", "invalid_request"),
    ],
)
def test_what_is_refused_names_the_field(
    http: TestClient, tweets: Path, change: dict[str, Any], field: str, code: str
) -> None:
    made = nightly(tweets.parent)
    job = {**made["job"], "input": str(tweets), **change.get("job", {})}
    answer = http.post("/v1/schedules", json={**made, **change, "job": job})
    assert answer.status_code == 422, answer.text
    assert (answer.json()["field"], answer.json()["code"]) == (field, code), answer.text


def test_only_a_schedule_has_new_rows(http: TestClient, tweets: Path) -> None:
    answer = http.post("/v1/jobs", json=summarize(tweets, only_new={}))
    assert (answer.status_code, answer.json()["field"]) == (422, "only_new")


def test_another_tenant_sees_nothing(gate: Gate) -> None:
    made = nightly(gate.folder / "acme")
    assert gate.call("acme read", "POST", "/v1/schedules", json=made).status_code == 403
    assert gate.call("acme submit", "POST", "/v1/schedules", json=made).status_code == 201
    assert gate.call("bolt admin", "GET", "/v1/schedules").json() == {"schedules": []}
    for method, path in (("GET", ""), ("POST", "/pause"), ("POST", "/run"), ("GET", "/runs"), ("DELETE", "")):
        assert gate.call("bolt admin", method, f"/v1/schedules/nightly{path}").status_code == 404
    assert gate.call("bolt submit", "POST", "/v1/schedules", json=made).status_code == 422  # acme's folder
    own = nightly(gate.folder / "bolt")
    assert gate.call("bolt submit", "POST", "/v1/schedules", json=own).status_code == 201  # the name is free
    body = {"first": "2026-03-01", "last": "2026-03-01"}
    write(gate.folder / "acme" / "2026-03-01.parquet", 2)
    assert gate.call("acme submit", "POST", "/v1/schedules/nightly/backfill", json=body).status_code == 202
    gate.http.app.state.services.sweeper.sweep()  # type: ignore[attr-defined]
    eventually(lambda: bool(gate.call("acme read", "GET", "/v1/schedules/nightly/runs").json()["runs"][0]["job_id"]))
    run = gate.call("acme read", "GET", "/v1/schedules/nightly/runs").json()["runs"][0]
    assert gate.call("acme read", "GET", f"/v1/jobs/{run['job_id']}").status_code == 200
    assert gate.call("bolt admin", "GET", f"/v1/jobs/{run['job_id']}").status_code == 404


@pytest.fixture
def connected(http: TestClient, monkeypatch: pytest.MonkeyPatch) -> Iterator[Client]:
    """Commands talk to the app in process."""
    monkeypatch.setenv("COLUMNS", "250")
    with Client("http://test", transport=Bridge(http)) as client:
        monkeypatch.setattr(serving, "Client", lambda url, **_: Client(url, transport=Bridge(http)))
        monkeypatch.setattr(serving, "existing", lambda settings, url: "http://test")
        yield client


def test_commands(connected: Client, tweets: Path) -> None:
    def call(*arguments: str, status: int = 0) -> str:
        result = runner.invoke(command_line, ["schedule", *arguments])
        assert result.exit_code == status, result.output
        return result.output

    source, output = str(tweets.parent / "{{ ds }}.parquet"), str(tweets.parent / "{{ ds }}")
    job = ("--recipe", "summarize", "--output", output, "--new-by", "id", "--overlap", "queue", "--window-hours", "6")
    assert "nightly fires first at 20" in call("create", "nightly", source, "--cron", "30 2 * * *", *job)
    made = connected.schedules.get("nightly").spec
    assert (made.job.only_new and made.job.only_new.key, made.overlap, made.window_seconds) == ("id", "queue", 21600)
    assert "30 2 * * *" in call("list")
    assert "paused" in call("pause", "nightly")
    assert "next 20" in call("resume", "nightly")
    assert call("run", "nightly").startswith("run_")
    assert "3 runs added, 0 were there" in call("backfill", "nightly", "2026-03-01", "2026-03-03")
    shown = json.loads(call("show", "nightly", "--json"))
    assert [run["trigger"] for run in shown["runs"]] == ["manual", "backfill", "backfill", "backfill"]
    assert "backfill" in call("show", "nightly")
    refused = call("create", "other", source, "--cron", "30 2 * *", *job, status=2)
    assert "cron" in refused
    assert "--start-at" in call("create", "x", source, "--cron", "30 2 * * *", "--start-at", "soon", *job, status=2)
    assert "nightly is deleted" in call("delete", "nightly")
    assert connected.schedules.list() == []


def test_dates_of_a_backfill_must_be_in_order(http: TestClient, tweets: Path) -> None:
    http.post("/v1/schedules", json=nightly(tweets.parent))
    body = {"first": str(date(2026, 3, 2)), "last": str(date(2026, 3, 1))}
    answer = http.post("/v1/schedules/nightly/backfill", json=body)
    assert (answer.status_code, answer.json()["field"]) == (422, "last")
