"""Health, readiness, metrics, models, workers, and what the app does when the database is away."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient
from prometheus_client.parser import text_string_to_metric_families
from sqlalchemy.exc import OperationalError

from api.deps import Services
from db.settings import Settings
from db.workers import worker_seen
from tests.api.conftest import MemoryQueue
from tests.api.ledger import finish, split, summarize

REPOSITORY = Path(__file__).parents[2]


def test_health(http: TestClient) -> None:
    assert http.get("/healthz").json() == {"status": "ok", "version": "0.1.0", "checks": {}}


def test_ready(http: TestClient, queue: MemoryQueue) -> None:
    answer = http.get("/readyz")
    assert (answer.status_code, answer.json()["checks"]) == (200, {"database": "ok", "broker": "ok"})
    queue.broken = "connection refused"
    answer = http.get("/readyz")
    assert (answer.status_code, answer.json()["status"]) == (503, "unavailable")
    assert answer.json()["checks"] == {"database": "ok", "broker": "connection refused"}


def test_metrics(http: TestClient, tweets: Path, services: Services) -> None:
    job_id = http.post("/v1/jobs", json=summarize(tweets)).json()["id"]
    finish(services, split(services, job_id, (2, 1))[0], b"x", failed=1)
    http.get(f"/v1/jobs/{job_id}")
    lines = http.get("/metrics").text.splitlines()
    assert 'nightmill_jobs{status="running"} 1.0' in lines
    assert 'nightmill_jobs{status="failed"} 0.0' in lines
    assert 'nightmill_rows{outcome="succeeded"} 1.0' in lines
    assert 'nightmill_rows{outcome="failed"} 1.0' in lines
    assert 'nightmill_tokens{kind="prompt"} 30.0' in lines
    label = 'method="GET",route="/v1/jobs/{job_id}",status="200"'
    assert f"nightmill_http_request_seconds_count{{{label}}} 1.0" in lines


def test_invented_methods_are_one_series(http: TestClient) -> None:
    for method in ("X1", "X2", "GET", "PATCH"):
        http.request(method, "/nowhere")
    families = text_string_to_metric_families(http.get("/metrics").text)
    found = next(each for each in families if each.name == "nightmill_http_request_seconds")
    counts = {each.labels["method"]: each.value for each in found.samples if each.name.endswith("_count")}
    assert counts == {"other": 2, "GET": 1, "PATCH": 1}


def test_metrics_of_queue_and_engines(http: TestClient, tweets: Path, services: Services) -> None:
    begun = http.post("/v1/jobs", json=summarize(tweets, priority=5)).json()["id"]
    finish(services, split(services, begun, (2, 1))[0], b"x", failed=1)
    http.post("/v1/jobs", json=summarize(tweets))
    stats = {"steps": 7, "step_seconds": 2.0, "model_seconds": 1.5, "grammar_seconds": 0.25, "prompt_tokens": 40}
    stats |= {"cached_tokens": 30, "output_tokens": 9, "computed_tokens": 25, "forced_tokens": 2, "preemptions": 1}
    stats |= {"running": 48, "waiting": 3, "blocks_total": 100, "blocks_used": 40, "blocks_cached": 10}
    stats |= {"max_sequences": 64, "memory_bytes": 1 << 30}
    drafts = [{"name": "prompt", "proposed": 12, "accepted": 8, "steps": 4}]
    with services.sessions.begin() as session:
        worker_seen(session, "host:1", "m", {**stats, "drafts": drafts})
        worker_seen(session, "host:2", None, {"memory_bytes": 5})  # no model loaded yet
    text = http.get("/metrics").text
    of = {"worker": "host:1", "model": "m"}
    samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    expected: list[tuple[str, dict[str, str], float]] = [
        ("nightmill_queue_jobs", {"priority": "5", "status": "running"}, 1),
        ("nightmill_queue_jobs", {"priority": "0", "status": "validating"}, 1),
        ("nightmill_queue_shards", {"priority": "5", "status": "running", "state": "running"}, 1),
        ("nightmill_queue_shards", {"priority": "5", "status": "running", "state": "pending"}, 0),
        ("nightmill_queue_rows", {}, 4),
        ("nightmill_webhook_deliveries_pending", {}, 0),
        ("nightmill_workers", {}, 2),
        ("nightmill_worker_memory_bytes", {"worker": "host:2"}, 5),
        ("nightmill_engine_steps_total", of, 7),
        ("nightmill_engine_step_seconds_total", {**of, "part": "model"}, 1.5),
        ("nightmill_engine_tokens_total", {**of, "kind": "cached"}, 30),
        ("nightmill_engine_preemptions_total", of, 1),
        ("nightmill_engine_sequences", {**of, "state": "running"}, 48),
        ("nightmill_engine_max_sequences", of, 64),
        ("nightmill_engine_cache_blocks", {**of, "state": "used"}, 40),
        ("nightmill_engine_draft_tokens_total", {**of, "drafter": "prompt", "outcome": "accepted"}, 8),
    ]
    for name, labels, value in expected:
        assert [s.value for s in samples if (s.name, s.labels) == (name, labels)] == [value], (name, labels)
    (oldest,) = (sample.value for sample in samples if sample.name == "nightmill_queue_oldest_seconds")
    assert 0 <= oldest < 60


def test_models(http: TestClient) -> None:
    answer = http.get("/v1/models").json()
    assert answer["default"] == "default-model"
    first = answer["models"][0]
    assert (first["name"], first["installed"]) == ("smollm2-135m", False)


def test_workers(http: TestClient, services: Services) -> None:
    assert http.get("/v1/workers").json() == {"workers": []}
    with services.sessions.begin() as session:
        worker_seen(session, "w1", "m", {"steps": 3})
    (worker,) = http.get("/v1/workers").json()["workers"]
    assert (worker["name"], worker["model"], worker["stats"]) == ("w1", "m", {"steps": 3})
    assert 0 <= worker["seen_seconds_ago"] < 30


def test_database_away(http: TestClient, app: FastAPI, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> None:
        raise OperationalError("SELECT 1", {}, Exception("connection refused"))

    monkeypatch.setattr("api.jobs.jobs.get", lambda session, job_id, tenant: refuse())
    answer = http.get("/v1/jobs/job_x")
    assert (answer.status_code, answer.json()["code"]) == (503, "database_unavailable")
    assert answer.headers["retry-after"] == "5"
    assert "SELECT" not in answer.text


def test_an_unforeseen_error_tells_nothing(http: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("api.jobs.jobs.get", lambda session, job_id, tenant: 1 / 0)
    answer = http.get("/v1/jobs/job_x")
    assert (answer.status_code, answer.json()["code"]) == (500, "internal_error")
    assert "division" not in answer.text


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [("GET", "/v1/nothing", 404, "not_found"), ("PUT", "/v1/jobs", 405, "method_not_allowed")],
)
def test_unknown_routes(http: TestClient, method: str, path: str, status: int, code: str) -> None:
    answer = http.request(method, path)
    assert (answer.status_code, answer.json()["code"]) == (status, code)
    assert answer.headers["content-type"] == "application/problem+json"


def test_a_body_that_is_no_json(http: TestClient) -> None:
    answer = http.post("/v1/jobs", content=b"{", headers={"Content-Type": "application/json"})
    assert (answer.status_code, answer.json()["code"]) == (422, "invalid_request")


def test_the_api_imports_no_engine_and_no_worker() -> None:
    program = "import sys, api.app; print(*sorted(sys.modules))"
    loaded = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=REPOSITORY
    ).stdout.split()
    forbidden = ("torch", "triton", "celery", "transformers", "engine", "worker", "huggingface_hub", "typer")
    assert [name for name in loaded if name.split(".")[0] in forbidden] == []


def test_every_setting_is_described() -> None:
    assert [name for name, field in Settings.model_fields.items() if not field.description] == []
