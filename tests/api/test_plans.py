"""Dry runs over HTTP, and what the command line makes of a plan."""

from __future__ import annotations

import io
from pathlib import Path

from fastapi.testclient import TestClient
from rich.console import Console

from api.cli.plan import show
from api.deps import Services
from db import dry_runs
from db.dispatch import Wakeup
from db.plan_results import PlanResult
from tests.api.conftest import MemoryQueue
from tests.api.ledger import eventually, summarize
from tests.api.test_dashboard import token


def interval(value: float) -> dict[str, float]:
    return {"value": value, "low": value - 10, "high": value + 10}


RESULT = PlanResult.model_validate(
    {
        "model_fingerprint": "f",
        "rows": {
            "total": 1000, "read": 1000, "sampled": 64, "duplicates": 12, "too_long": interval(20),
            "failing": interval(30), "causes": {"null_text": 3},
        },
        "prompt_tokens": interval(5000), "output_tokens": interval(2000), "total_tokens": interval(7000),
        "cached_share": 0.25, "seconds": interval(600), "workers": 2, "rows_per_second": 1.67,
        "tokens_per_second": 11.7, "cost": interval(50),
        "memory": {"bytes_per_token": 100, "bytes_per_sequence": 1_500_000, "cache_bytes": 64_000_000, "sequences": 42},
        "limit": "decode_compute", "shares": {"decode_compute": 0.8},
        "devices": [{"device": "h100", "count": 2, "dtype": "bf16", "seconds": 150.0, "least_seconds": 90.0}],
        "examples": [{"row": 3, "output": "[b]fine[/b]", "finish_reason": "stop", "error": None}],
    }
)  # fmt: skip


def end(services: Services, plan_id: str, result: PlanResult | None) -> None:
    """As a worker does. None: it fails."""
    with services.sessions.begin() as session:
        run = dry_runs.begin(session, plan_id, 3, lease_seconds=60)
        assert run is not None
        if result is None:
            assert dry_runs.fail(session, run, code="model_missing", message="no such model")
        else:
            assert dry_runs.finish(session, run, result.model_dump(mode="json"), rows_done=8)


def test_a_dry_run_makes_no_job(http: TestClient, tweets: Path, queue: MemoryQueue, services: Services) -> None:
    answer = http.post("/v1/jobs?dry_run=true&sample_rows=8", json=summarize(tweets))
    plan = answer.json()
    assert answer.status_code == 202
    assert answer.headers["location"] == f"/v1/plans/{plan['id']}"
    assert (plan["status"], plan["rows"], plan["sample_rows"], plan["recipe"]) == ("waiting", 3, 8, "summarize")
    assert (plan["result"], plan["error"]) == (None, None)
    eventually(lambda: queue.sent == [Wakeup("plan", plan["id"])])
    assert http.get("/v1/jobs").json()["jobs"] == []
    end(services, plan["id"], RESULT)
    found = http.get(f"/v1/plans/{plan['id']}").json()
    assert (found["status"], found["rows_done"]) == ("done", 8)
    assert PlanResult.model_validate(found["result"]) == RESULT


def test_a_plan_that_failed_says_why(http: TestClient, tweets: Path, services: Services) -> None:
    plan_id = http.post("/v1/jobs?dry_run=true", json=summarize(tweets)).json()["id"]
    end(services, plan_id, None)
    found = http.get(f"/v1/plans/{plan_id}").json()
    assert (found["status"], found["error"]) == ("failed", {"code": "model_missing", "message": "no such model"})


def test_it_is_checked_as_a_submission_is(http: TestClient, tweets: Path) -> None:
    for body in (
        summarize(tweets.parent / "none.parquet"),
        summarize(tweets, max_rows=0),
        summarize(tweets, nonsense=1),
    ):
        refused, planned = http.post("/v1/jobs", json=body), http.post("/v1/jobs?dry_run=true", json=body)
        assert planned.status_code == refused.status_code == 422
        assert planned.json()["code"] == refused.json()["code"]
        assert planned.json()["field"] == refused.json()["field"]
    keyed = http.post("/v1/jobs?dry_run=true", json=summarize(tweets), headers={"Idempotency-Key": "k"})
    assert (keyed.status_code, keyed.json()["field"]) == (422, "idempotency_key")
    few = http.post("/v1/jobs?dry_run=true&sample_rows=7", json=summarize(tweets))
    assert (few.status_code, few.json()["field"]) == (422, "sample_rows")


def test_one_that_is_not_there(http: TestClient) -> None:
    answer = http.get("/v1/plans/plan_none")
    assert (answer.status_code, answer.json()["code"]) == (404, "plan_not_found")


def planned(http: TestClient, source: Path) -> tuple[str, dict[str, str]]:
    """By the dashboard's form: the plan's page, and what the form was."""
    form = {"recipe": "summarize", "input": str(source), "plan": "yes", "form_token": token(http.get("/submit").text)}
    answer = http.post("/submit", data=form, follow_redirects=False)
    assert answer.status_code == 303
    return answer.headers["location"], form


def test_the_page_of_a_plan(http: TestClient, tweets: Path, services: Services) -> None:
    """Asked for, waited for, read, and submitted as it was planned."""
    page, form = planned(http, tweets)
    waiting = http.get(page).text
    assert "0 of 3 rows of the sample" in waiting
    assert "Submit this job" not in waiting
    assert http.get("/v1/jobs").json()["jobs"] == []
    example = RESULT.examples[0].model_copy(update={"output": "<b>fine</b>"})
    end(services, page.removeprefix("/plans/"), RESULT.model_copy(update={"examples": [example]}))
    text = http.get(page).text
    for shown in (
        "10 min 00 s", "9 min 50 s to 10 min 10 s", "40.00 to 60.00", "4,990 to 5,010", "12 rows", "null_text (3)",
        "2 × h100, bf16", "On 2 workers", "The limit is computing answers", "&lt;b&gt;fine&lt;/b&gt;",
    ):  # fmt: skip
        assert shown in text, shown
    answer = http.post(f"{page}/submit", data=form, follow_redirects=False)
    job = http.get(f"/v1{answer.headers['location']}").json()
    assert (job["spec"]["input"], job["recipe"], job["counts"]["total"]) == (str(tweets), "summarize", 3)
    assert http.post(f"{page}/submit", data={**form, "form_token": "x"}).status_code == 403
    assert http.post("/plans/plan_none/submit", data=form).status_code == 409
    assert http.get("/plans/plan_none").status_code == 404


def test_the_page_of_a_plan_that_failed(http: TestClient, tweets: Path, services: Services) -> None:
    page, _ = planned(http, tweets)
    end(services, page.removeprefix("/plans/"), None)
    text = http.get(page).text
    assert "<strong>model_missing</strong>: no such model" in text
    assert "Submit this job" not in text
    assert "rows of the sample" not in text


def test_the_table() -> None:
    shown = io.StringIO()
    show(RESULT, Console(file=shown, width=120))
    lines = [" ".join(line.replace("│", " ").split()) for line in shown.getvalue().splitlines()]
    assert "time 10:00 9:50 to 10:10" in lines
    assert "all tokens 7,000 6,990 to 7,010" in lines
    assert "cost 50.00 40.00 to 60.00" in lines
    assert "prompt tokens from the cache: 25% · duplicates: 12 rows" in lines
    assert "the limit is computing answers (80% of the time)" in lines
    assert "failed in what was read: null_text (3)" in lines
    assert "row 3: [b]fine[/b]" in lines
    assert "2 x h100 2:30 1:30" in lines
    shown = io.StringIO()
    show(RESULT.model_copy(update={"devices": []}), Console(file=shown, width=120))
    assert "h100" not in shown.getvalue()
