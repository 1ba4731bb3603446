"""Routes of jobs: submit, list, read, cancel."""

from __future__ import annotations

from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fastapi.testclient import TestClient
from sqlalchemy import update

from api.deps import Services
from db import jobs, shards
from db.columns import ERROR
from db.dispatch import Wakeup
from db.models import Job, JobStatus, Shard
from db.progress import Progress
from db.session import db_now
from db.settings import Settings
from db.shards import Beat
from tests.api.conftest import MemoryQueue
from tests.api.ledger import eventually, finish, merge, split, summarize, write


def submit(http: TestClient, body: dict[str, Any], **headers: str) -> dict[str, Any]:
    answer = http.post("/v1/jobs", json=body, headers=headers)
    assert answer.status_code == 202, answer.text
    job: dict[str, Any] = answer.json()
    return job


def test_submit(http: TestClient, tweets: Path, queue: MemoryQueue, api_settings: Settings) -> None:
    answer = http.post("/v1/jobs", json=summarize(tweets))
    job = answer.json()
    assert answer.status_code == 202
    assert answer.headers["location"] == f"/v1/jobs/{job['id']}"
    assert job["status"] == "validating"
    assert job["input"] == str(tweets)
    assert job["output"] == str(api_settings.data_folder / job["id"])
    assert job["model"] == "default-model"
    assert job["recipe"] == "summarize"
    assert job["counts"] == {
        "total": 3, "done": 0, "succeeded": 0, "failed": 0, "pending": 3, "cancelled": 0, "expired": 0,
        "shards_total": None, "shards_done": 0,
    }  # fmt: skip
    assert job["rates"] == {"rows_per_second": None, "tokens_per_second": None}
    assert (job["eta_seconds"], job["started_at"], job["error"]) == (None, None, None)
    eventually(lambda: queue.sent == [Wakeup("split", job["id"])])


def test_max_rows_bounds_the_total(http: TestClient, tweets: Path) -> None:
    assert submit(http, summarize(tweets, max_rows=2))["counts"]["total"] == 2
    assert submit(http, summarize(tweets, max_rows=9))["counts"]["total"] == 3


def test_a_template_names_its_columns(http: TestClient, tweets: Path) -> None:
    recipe = {"kind": "generate", "template": "{{ text }} {% if id %}{{ label }}{% endif %}"}
    job = submit(http, {"input": str(tweets), "recipe": recipe})
    assert job["spec"]["recipe"]["columns"] == ["id", "label", "text"]


def test_a_lost_broker_fails_no_request(http: TestClient, tweets: Path, queue: MemoryQueue, services: Services) -> None:
    services.sweeper.stop()  # Its own thread would be another that sends.
    queue.broken = "connection refused"
    job = submit(http, summarize(tweets))
    queue.broken = None
    assert services.sweeper.sweep() == 1
    assert queue.sent == [Wakeup("split", job["id"])]


def test_the_same_key_gives_the_same_job(http: TestClient, tweets: Path, tmp_path: Path) -> None:
    body = summarize(tweets, output=str(tmp_path / "data" / "out"))
    first = submit(http, body, **{"Idempotency-Key": "k"})
    (tmp_path / "data" / "out").mkdir()
    (tmp_path / "data" / "out" / "part-00000.parquet").write_bytes(b"x")  # The first job is at work there.
    assert submit(http, body, **{"Idempotency-Key": "k"})["id"] == first["id"]
    assert submit(http, {**body, "idempotency_key": "k"})["id"] == first["id"]
    answer = http.post("/v1/jobs", json={**body, "max_rows": 1}, headers={"Idempotency-Key": "k"})
    assert (answer.status_code, answer.json()["code"]) == (409, "idempotency_conflict")


CHAT = {"kind": "chat"}


def extract(**properties: Any) -> dict[str, Any]:
    return {"kind": "extract", "json_schema": {"type": "object", "properties": properties}}


CASES: list[tuple[str, dict[str, Any], str, str]] = [
    ("unknown field", {"colour": "red"}, "invalid_request", "colour"),
    ("unknown recipe", {"recipe": {"kind": "poem"}}, "invalid_request", "recipe"),
    ("unknown option of a recipe", {"recipe": {"kind": "label", "labels": ["a", "b"], "max_words": 9}},
     "invalid_request", "recipe.max_words"),
    ("one label", {"recipe": {"kind": "label", "labels": ["a"]}}, "invalid_request", "recipe.labels"),
    ("no column", {"recipe": {"kind": "summarize", "column": "body"}}, "no_column", "recipe.column"),
    ("not text", {"recipe": {"kind": "summarize", "column": "id"}}, "wrong_type", "recipe.column"),
    ("not messages", {"recipe": {"kind": "chat", "column": "id"}}, "wrong_type", "recipe.column"),
    ("no column of the template", {"recipe": {"kind": "generate", "template": "{{ body }}"}}, "no_column",
     "recipe.template"),
    ("broken template", {"recipe": {"kind": "generate", "template": "{{ text"}}, "invalid_job", "recipe.template"),
    ("columns that contradict", {"recipe": {"kind": "generate", "template": "{{ text }}", "columns": ["id"]}},
     "invalid_job", "recipe.columns"),
    ("no such kept column", {"keep_columns": ["body"]}, "no_column", "keep_columns"),
    ("kept twice", {"keep_columns": ["id", "id"]}, "invalid_job", "keep_columns"),
    ("collision", {"recipe": {"kind": "label", "labels": ["a", "b"]}}, "invalid_job", "output_prefix"),
    ("collision with a property", {"recipe": extract(label={"type": "string"})}, "invalid_job", "output_prefix"),
    ("property named as a column", {"recipe": extract(error={"type": "string"})}, "invalid_job", "recipe.json_schema"),
    ("no columns in the schema", {"recipe": {"kind": "extract", "json_schema": {"type": "array"}}}, "invalid_job",
     "recipe.json_schema"),
    ("no schema", {"recipe": {"kind": "extract", "json_schema": {"type": "strin"}}}, "invalid_request",
     "recipe.json_schema"),
    ("two schemas", {"recipe": {"kind": "extract", "json_schema": {}, "schema_column": "text"}}, "invalid_request",
     "recipe"),
    ("schemas that are no text", {"recipe": {"kind": "extract", "schema_column": "id"}}, "wrong_type",
     "recipe.schema_column"),
    ("no column of schemas", {"recipe": {**CHAT, "format": {"type": "json_schema", "schema_column": "x"}}},
     "no_column", "recipe.format.schema_column"),
    ("pattern that may take long", {"recipe": {**CHAT, "format": {"type": "json_schema", "json_schema":
     {"pattern": "(?!a)"}}}}, "invalid_request", "recipe.format.json_schema"),
    ("unknown format", {"recipe": {**CHAT, "format": {"type": "xml"}}}, "invalid_request", "recipe.format"),
    ("a format where none has a place", {"recipe": {"kind": "summarize", "format": {"type": "json_object"}}},
     "invalid_request", "recipe.format"),
    ("a stop beside a format", {"recipe": {**CHAT, "format": {"type": "json_object"}}, "sampling": {"stop": ["x"]}},
     "invalid_request", "body"),
    ("map-reduce of what is no summary", {"recipe": {"kind": "label", "labels": ["a", "b"]}, "on_long": "map_reduce"},
     "invalid_request", "on_long"),
    ("sampling", {"sampling": {"top_p": 2}}, "invalid_request", "sampling.top_p"),
    ("input elsewhere", {"input": "/etc/passwd"}, "dataset_refused", "input"),
    ("input by http", {"input": "http://example.org/x.parquet"}, "dataset_refused", "input"),
    ("no such upload", {"input": "upload://upl_nothing"}, "upload_not_found", "input"),
    ("output elsewhere", {"output": "/etc/out"}, "dataset_refused", "output"),
]  # fmt: skip


@pytest.mark.parametrize(("change", "code", "field"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_refused(http: TestClient, tweets: Path, change: dict[str, Any], code: str, field: str) -> None:
    answer = http.post("/v1/jobs", json={**summarize(tweets), **change})
    problem = answer.json()
    assert answer.status_code == 422, problem
    assert answer.headers["content-type"] == "application/problem+json"
    assert (problem["code"], problem["field"], problem["status"]) == (code, field, 422)
    assert problem["title"]
    assert problem["detail"]
    assert http.get("/v1/jobs").json()["jobs"] == []


def test_a_prefix_or_fewer_columns_cure_a_collision(http: TestClient, tweets: Path) -> None:
    recipe = {"kind": "label", "labels": ["a", "b"]}
    submit(http, summarize(tweets, recipe=recipe, output_prefix="model_"))
    submit(http, summarize(tweets, recipe=recipe, keep_columns=["id", "text"]))


def test_a_schema_keeps_its_order(http: TestClient, tweets: Path) -> None:
    """The order of properties is that of the columns and of the model's answer."""
    recipe = extract(zebra={"type": "string"}, apple={"enum": ["x"]}, mango={"type": "integer"})
    job = submit(http, summarize(tweets, recipe=recipe))
    assert list(http.get(f"/v1/jobs/{job['id']}").json()["spec"]["recipe"]["json_schema"]["properties"]) == [
        *("zebra", "apple", "mango")
    ]


def test_a_broken_file_is_named(http: TestClient, tweets: Path) -> None:
    broken = tweets.with_name("broken.parquet")
    broken.write_bytes(tweets.read_bytes()[:-10])
    problem = http.post("/v1/jobs", json=summarize(broken)).json()
    assert (problem["code"], problem["field"], problem["file"]) == ("invalid_parquet", "input", str(broken))


def test_too_many_rows(http: TestClient, tweets: Path) -> None:
    large = write(tweets.with_name("large.parquet"), 1001)
    problem = http.post("/v1/jobs", json=summarize(large)).json()
    assert (problem["code"], problem["field"]) == ("invalid_job", "input")
    submit(http, summarize(large, max_rows=1000))


def test_an_output_in_use_or_inside_the_input(http: TestClient, tweets: Path) -> None:
    output = str(tweets.with_name("out"))
    submit(http, summarize(tweets, output=output))
    problem = http.post("/v1/jobs", json=summarize(tweets, output=output)).json()
    assert (problem["code"], problem["field"]) == ("invalid_job", "output")
    problem = http.post("/v1/jobs", json=summarize(tweets.parent, output=str(tweets.parent / "in"))).json()
    assert (problem["code"], problem["field"]) == ("invalid_job", "output")


def test_header_and_field_must_agree(http: TestClient, tweets: Path) -> None:
    body = summarize(tweets, idempotency_key="a")
    problem = http.post("/v1/jobs", json=body, headers={"Idempotency-Key": "b"}).json()
    assert (problem["code"], problem["field"]) == ("invalid_job", "idempotency_key")


def test_pages(http: TestClient, tweets: Path) -> None:
    ids = [submit(http, summarize(tweets))["id"] for _ in range(5)]
    first = http.get("/v1/jobs", params={"limit": 2}).json()
    assert [job["id"] for job in first["jobs"]] == ids[:2:-1]
    second = http.get("/v1/jobs", params={"limit": 3, "after": first["next"]}).json()
    assert [job["id"] for job in second["jobs"]] == ids[2::-1]
    assert second["next"] is None
    assert http.get("/v1/jobs", params={"status": "completed"}).json() == {"jobs": [], "next": None}


@pytest.mark.parametrize(
    ("query", "status", "code", "field"),
    [("limit=0", 422, "invalid_request", "limit"), ("status=x", 422, "invalid_request", "status"),
     ("after=job_x", 404, "job_not_found", "after")],
)  # fmt: skip
def test_bad_pages(http: TestClient, query: str, status: int, code: str, field: str) -> None:
    answer = http.get(f"/v1/jobs?{query}")
    assert (answer.status_code, answer.json()["code"], answer.json()["field"]) == (status, code, field)


def test_live_counts(http: TestClient, tweets: Path, services: Services) -> None:
    job_id = submit(http, summarize(tweets))["id"]
    claims = split(services, job_id, (2, 1))
    finish(services, claims[0], b"part", failed=1)
    job = http.get(f"/v1/jobs/{job_id}").json()
    assert job["status"] == "running"
    assert job["counts"] == {
        "total": 3, "done": 2, "succeeded": 1, "failed": 1, "pending": 1, "cancelled": 0, "expired": 0,
        "shards_total": 2, "shards_done": 1,
    }  # fmt: skip
    assert job["tokens"] == {"prompt": 30, "cached": 10, "output": 6}
    rate = job["rates"]["rows_per_second"]
    assert job["rates"]["tokens_per_second"] == pytest.approx(18 * rate)
    ends = [datetime.fromisoformat(job["ends"][name]) for name in ("earliest", "at", "latest")]
    assert ends == sorted(ends)
    assert (ends[1] - datetime.now(UTC)).total_seconds() == pytest.approx(job["eta_seconds"], abs=5)
    assert http.get("/v1/jobs").json()["jobs"][0]["ends"] is not None
    finish(services, claims[1], b"part")
    merge(services, job_id)
    job = http.get(f"/v1/jobs/{job_id}").json()
    assert (job["status"], job["counts"]["done"]) == ("completed_with_errors", 3)
    assert (job["eta_seconds"], job["ends"]) == (None, None)


def test_an_end_beyond_all_dates_is_none(http: TestClient, tweets: Path, services: Services) -> None:
    """Three rows in a week, and ten million to come."""
    job_id = submit(http, summarize(tweets))["id"]
    claim = split(services, job_id, (3,))[0]
    with services.sessions.begin() as session:
        session.execute(update(Job).values(num_rows=10**7, running_at=db_now() - 7 * 86_400))
        session.execute(update(Shard).values(stop_row=10**7))
        assert shards.beat(session, claim, lease_seconds=60, progress=Progress(rows_succeeded=3)) is Beat.OK
    for path in (f"/v1/jobs/{job_id}", "/v1/jobs", f"/jobs/{job_id}", "/"):
        assert http.get(path).status_code == 200, path
    job = http.get(f"/v1/jobs/{job_id}").json()
    assert (job["counts"]["done"], job["eta_seconds"], job["ends"]) == (3, None, None)


def test_percentiles(http: TestClient, tweets: Path, services: Services) -> None:
    job_id = submit(http, summarize(tweets))["id"]
    claims = split(services, job_id, (2, 1))
    assert http.get(f"/v1/jobs/{job_id}").json()["percentiles"] == {}
    finish(services, claims[0], b"part", counters={"steps": 2.0, "histogram.row_latency_seconds.0": 2.0})
    finish(services, claims[1], b"part", counters={"histogram.row_latency_seconds.12": 1.0})
    expected = {"row_latency_seconds": {"p50": 1.0, "p90": 10.0, "p99": 10.0, "count": 3}}
    assert http.get(f"/v1/jobs/{job_id}").json()["percentiles"] == expected
    assert http.get("/v1/jobs").json()["jobs"][0]["percentiles"] == {}


def test_rates_leave_the_loading_of_the_model_out(http: TestClient, tweets: Path, services: Services) -> None:
    job_id = submit(http, summarize(tweets))["id"]
    finish(services, split(services, job_id, (3,))[0], b"part")
    merge(services, job_id)
    with services.sessions.begin() as session:
        job = jobs.get(session, job_id, "default")
        assert job.finished_at is not None
        job.started_at, job.running_at = job.finished_at - 60.0, job.finished_at - 6.0
    view = http.get(f"/v1/jobs/{job_id}").json()
    assert view["rates"] == pytest.approx({"rows_per_second": 0.5, "tokens_per_second": 6.0})
    assert view["elapsed_seconds"] == pytest.approx(60.0)
    times = [datetime.fromisoformat(view[name]) for name in ("started_at", "running_at", "finished_at")]
    assert [round((after - before).total_seconds()) for before, after in pairwise(times)] == [54, 6]


def test_cancel(http: TestClient, tweets: Path, services: Services) -> None:
    job_id = submit(http, summarize(tweets))["id"]
    answer = http.post(f"/v1/jobs/{job_id}/cancel")
    assert (answer.status_code, answer.json()["status"]) == (202, "cancelled")
    job_id = submit(http, summarize(tweets))["id"]
    finish(services, split(services, job_id, (3,))[0], b"part")
    answer = http.post(f"/v1/jobs/{job_id}/cancel")
    assert (answer.status_code, answer.json()["code"]) == (409, "job_not_cancellable")


def test_counts_add_up_however_a_job_ends(http: TestClient, tweets: Path, services: Services) -> None:
    job_id = submit(http, summarize(tweets))["id"]
    claims = split(services, job_id, (1, 2))
    finish(services, claims[0], b"part")
    answer = http.post(f"/v1/jobs/{job_id}/cancel")
    assert (answer.json()["status"], answer.json()["counts"]["pending"]) == ("cancelling", 2)
    with services.sessions.begin() as session:
        assert shards.cancelled(session, claims[1])
        assert jobs.complete(session, job_id) is JobStatus.CANCELLED
    counts = http.get(f"/v1/jobs/{job_id}").json()["counts"]
    assert (counts["succeeded"], counts["failed"], counts["cancelled"], counts["pending"]) == (1, 0, 2, 0)


def test_pause_and_resume(http: TestClient, tweets: Path, services: Services, queue: MemoryQueue) -> None:
    job_id = submit(http, summarize(tweets, priority=3, deadline_seconds=60))["id"]
    answer = http.post(f"/v1/jobs/{job_id}/pause")
    assert (answer.status_code, answer.json()["status"]) == (202, "paused")
    assert [job["id"] for job in http.get("/v1/jobs?status=paused").json()["jobs"]] == [job_id]
    answer = http.post(f"/v1/jobs/{job_id}/resume").json()
    assert (answer["status"], answer["priority"]) == ("validating", 3)
    lasts = datetime.fromisoformat(answer["expires_at"]) - datetime.fromisoformat(answer["created_at"])
    assert lasts.total_seconds() == pytest.approx(60, abs=0.1)
    finish(services, split(services, job_id, (3,))[0], b"part")
    answer = http.post(f"/v1/jobs/{job_id}/pause")
    assert (answer.status_code, answer.json()["code"]) == (409, "wrong_state")
    assert answer.json()["detail"] == f"job '{job_id}' is finalizing: it cannot be paused"


def test_retry_makes_one_job_of_the_failed_rows(http: TestClient, tweets: Path, services: Services) -> None:
    job_id = submit(http, summarize(tweets, max_rows=3))["id"]
    claim = split(services, job_id, (3,))[0]
    assert http.post(f"/v1/jobs/{job_id}/retry").json()["code"] == "wrong_state"
    finish(services, claim, b"part", failed=1)
    merge(services, job_id)
    assert http.post(f"/v1/jobs/{job_id}/retry").json()["code"] == "nothing_to_retry"
    letters = Path(claim.output_uri) / "_errors"
    letters.mkdir()
    table = pq.read_table(tweets).slice(1, 1)
    error = pa.array([{"code": "too_long", "message": "m"}], ERROR)
    pq.write_table(table.append_column("nightmill_error", error), letters / "part-00000.parquet")
    again = http.post(f"/v1/jobs/{job_id}/retry")
    assert again.status_code == 202, again.text
    job = again.json()
    assert (job["retry_of"], job["counts"]["total"], job["input"]) == (job_id, 1, str(letters))
    assert http.post(f"/v1/jobs/{job_id}/retry").json()["id"] == job["id"]
    assert job["output"] != http.get(f"/v1/jobs/{job_id}").json()["output"]


ROUTES = [("GET", ""), ("GET", "/results"), *(("POST", f"/{name}") for name in ("cancel", "pause", "resume", "retry"))]


@pytest.mark.parametrize(("method", "path"), ROUTES)
def test_no_such_job(http: TestClient, method: str, path: str) -> None:
    answer = http.request(method, f"/v1/jobs/job_x{path}")
    assert (answer.status_code, answer.json()["code"]) == (404, "job_not_found")
