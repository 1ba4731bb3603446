"""What a tenant may have waiting and running: each way to ask for tokens is counted for what it asks."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from sqlalchemy import select

from db import body_tokens
from db.models import Job
from db.openai_body import CHAT, COMPLETIONS
from tests.api.gate import Gate
from tests.api.ledger import split, summarize, write
from tests.api.openai.rig import eventually, jsonl

WHO = "acme submit"


def limit(gate: Gate, **quotas: int) -> None:
    assert gate.call("default admin", "PATCH", "/v1/tenants/acme", json=quotas).status_code == 200


def body(**options: Any) -> dict[str, Any]:
    return {"model": "m", "messages": [{"role": "user", "content": "hi"}], **options}


def batch(gate: Gate, bodies: list[dict[str, Any]]) -> dict[str, Any]:
    """A batch of these requests, its file checked."""
    lines = [{"custom_id": str(i), "method": "POST", "url": CHAT, "body": each} for i, each in enumerate(bodies)]
    sent = {"files": {"file": ("a.jsonl", jsonl(lines))}, "data": {"purpose": "batch"}}
    file_id = gate.call(WHO, "POST", "/v1/files", **sent).json()["id"]
    asked = {"input_file_id": file_id, "endpoint": CHAT, "completion_window": "24h"}
    batch_id = gate.call(WHO, "POST", "/v1/batches", json=asked).json()["id"]

    def checked() -> dict[str, Any] | None:
        found: dict[str, Any] = gate.call(WHO, "GET", f"/v1/batches/{batch_id}").json()
        return found if found["status"] != "validating" or found["nightmill"]["job_id"] else None

    found: dict[str, Any] = eventually(checked, "the file is checked")
    return found


def submit(gate: Gate, columns: dict[str, list[Any]], recipe: dict[str, Any], **more: Any) -> httpx.Response:
    path = gate.folder / "acme" / "rows.parquet"
    pq.write_table(pa.table(columns), path, use_dictionary=False)
    return gate.call(WHO, "POST", "/v1/jobs", json={"input": str(path), "recipe": recipe, **more})


def num_tokens(gate: Gate) -> list[int]:
    """As estimated for each job there is, the oldest first."""
    with gate.sessions.begin() as session:
        return list(session.scalars(select(Job.num_tokens).order_by(Job.created_at)))


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens"])
def test_a_batch_counts_what_its_lines_ask_for(gate: Gate, name: str) -> None:
    limit(gate, max_queued_tokens=20_000)
    refused = batch(gate, [body(), body(n=128, **{name: 100_000})])
    assert (refused["status"], refused["errors"]["data"][0]["code"]) == ("failed", "quota_exceeded")
    assert "12,800," in refused["errors"]["data"][0]["message"]
    assert num_tokens(gate) == []
    assert batch(gate, [body(), body(n=4, **{name: 2000})])["errors"] is None
    assert 4 * 2000 + body_tokens.ANSWER_TOKENS < num_tokens(gate)[0] < 9000


def test_a_single_request_counts_what_it_asks_for(gate: Gate) -> None:
    limit(gate, max_queued_tokens=2000)
    answer = gate.call(WHO, "POST", CHAT, json=body(n=2, max_tokens=2000))
    assert (answer.status_code, answer.json()["error"]["code"]) == (429, "quota_exceeded")


def test_the_bodies_of_a_native_job_are_read(gate: Gate, monkeypatch: pytest.MonkeyPatch) -> None:
    limit(gate, max_queued_tokens=5000)
    texts = [json.dumps(body(max_tokens=1000)), None, "[", json.dumps(body(n=3, max_tokens=10**30))]
    recipe = {"kind": "openai"}
    answer = submit(gate, {"body": texts}, recipe)
    assert (answer.status_code, answer.json()["code"]) == (429, "quota_exceeded")
    assert submit(gate, {"body": texts}, recipe, max_rows=3).status_code == 202
    assert 1000 < num_tokens(gate)[0] < 1200
    for name, most in (("MOST_BODIES", 2), ("MOST_BYTES", 50)):
        with monkeypatch.context() as patch:
            patch.setattr(body_tokens, name, most)
            answer = submit(gate, {"body": texts}, recipe, max_rows=3)
        assert (answer.status_code, answer.json()["field"]) == (422, "input")
    limit(gate, max_queued_tokens=10**18)
    assert submit(gate, {"body": texts}, recipe, sampling={}).status_code == 429


def test_what_a_body_asks_for() -> None:
    assert body_tokens.of_body(CHAT, {}) == body_tokens.ANSWER_TOKENS
    assert body_tokens.of_body(COMPLETIONS, {"n": 2}) == 32
    assert body_tokens.of_body(CHAT, {"n": 10**9, "max_tokens": None}) == 128 * body_tokens.ANSWER_TOKENS
    assert body_tokens.of_body(CHAT, {"n": "2", "max_tokens": -5}) == body_tokens.ANSWER_TOKENS


@pytest.mark.parametrize(
    ("tokens", "found"),
    [(2**31 - 1, (429, "quota_exceeded")), (2**31, (422, "invalid_request")), (10**400, (422, "invalid_request"))],
)
def test_more_tokens_than_a_column_holds_are_refused(gate: Gate, tokens: int, found: tuple[int, str]) -> None:
    limit(gate, max_queued_tokens=5000)
    recipe = {"kind": "generate", "template": "{{ text }}"}
    answer = submit(gate, {"text": ["hi"]}, recipe, sampling={"max_tokens": tokens})
    assert (answer.status_code, answer.json()["code"]) == found


def test_each_label_of_many_is_counted_and_the_prompt_once(gate: Gate) -> None:
    """The engine computes the answers about all labels behind one prompt."""
    limit(gate, max_queued_tokens=10**9)
    labels = [f"label{i:03}" for i in range(1000)]
    for multi_label in (False, True):
        recipe = {"kind": "label", "labels": labels, "multi_label": multi_label}
        assert submit(gate, {"text": ["word " * 4000] * 2}, recipe).status_code == 202
    one, many = num_tokens(gate)
    assert many - one == pytest.approx(2 * 1000 * (8 / 4 + 3), rel=0.01)


def test_a_job_that_was_begun_is_resumed_where_there_is_room(gate: Gate) -> None:
    limit(gate, max_running_jobs=1)
    ids = []
    for _ in range(2):
        ids.append(gate.submit(WHO)["id"])
        split(gate.services, ids[-1], (3,))
        assert gate.call(WHO, "POST", f"/v1/jobs/{ids[-1]}/pause").status_code == 202
    first, second = (gate.call(WHO, "POST", f"/v1/jobs/{job_id}/resume") for job_id in ids)
    assert (first.status_code, second.status_code, second.json()["code"]) == (202, 429, "quota_exceeded")
    assert "this job and the 1 that run already are more than the tenant's quota of 1" in second.json()["detail"]
    assert gate.call(WHO, "GET", f"/v1/jobs/{ids[1]}").json()["status"] == "paused"


def test_a_plan_is_refused_where_its_sample_would_be(gate: Gate) -> None:
    path = write(gate.folder / "acme" / "in.parquet", 100)

    def plan(**more: Any) -> tuple[int, str]:
        answer = gate.call(WHO, "POST", "/v1/jobs?dry_run=true&sample_rows=8", json=summarize(path, **more))
        return answer.status_code, answer.json().get("code", "")

    limit(gate, max_queued_rows=8)
    assert plan() == (202, "")
    limit(gate, max_queued_rows=7)
    assert plan() == (429, "quota_exceeded")
    limit(gate, max_queued_rows=8, max_queued_tokens=8000)
    assert plan(sampling={"max_tokens": 1001}) == (429, "quota_exceeded")
    assert plan(sampling={"max_tokens": 500}) == (202, "")
