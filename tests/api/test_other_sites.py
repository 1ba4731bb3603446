"""Without keys: what pages of other sites can make a browser do here is nothing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from fastapi.testclient import TestClient

from api.app import create_app
from db.settings import Settings
from tests.api.conftest import MemoryQueue

HOST = "127.0.0.1:8642"
# What a browser sends without asking the API first.
SIMPLE: list[tuple[str, str, dict[str, Any]]] = [
    ("POST", "/v1/schedules/nightly/pause", {}),
    ("POST", "/v1/jobs/job_1/cancel", {}),
    ("POST", "/v1/uploads", {"files": {"file": ("x.parquet", b"x")}}),
    ("POST", "/v1/files", {"files": {"file": ("x.jsonl", b"{}\n")}, "data": {"purpose": "batch"}}),
    ("POST", "/v1/jobs", {"content": b"{}", "headers": {"Content-Type": "text/plain"}}),
    ("POST", "/v1/chat/completions", {"content": b"{}", "headers": {"Content-Type": "text/plain"}}),
    ("POST", "/submit", {"data": {"recipe": "summarize"}}),
    ("DELETE", "/v1/webhooks/hook_1", {}),
]
OTHERS = [
    "https://evil.example",
    "null",
    "http://127.0.0.1:3000",
    "http://localhost:8642",
    f"http://{HOST}.evil.example",
    f"http://evil.example://{HOST}",
    "http://[",
    "",
]


@pytest.fixture
def http(api_settings: Settings) -> Iterator[TestClient]:
    with TestClient(create_app(api_settings, MemoryQueue()), base_url=f"http://{HOST}") as http:
        yield http


def sent(http: TestClient, method: str, path: str, more: dict[str, Any], **headers: str) -> Any:
    return http.request(method, path, **{**more, "headers": {**more.get("headers", {}), **headers}})


@pytest.mark.parametrize(("method", "path", "more"), SIMPLE)
def test_another_site_changes_nothing(http: TestClient, method: str, path: str, more: dict[str, Any]) -> None:
    refused = sent(http, method, path, more, Origin="https://evil.example")
    assert (refused.status_code, refused.json()["code"]) == (403, "other_origin")
    assert refused.headers["content-type"] == "application/problem+json"
    assert "'https://evil.example'" in refused.json()["detail"]
    for own in ({}, {"Origin": f"http://{HOST}"}):  # a program, and a page of ours
        assert '"other_origin"' not in sent(http, method, path, more, **own).text


def test_what_counts_as_another_site(http: TestClient) -> None:
    answers = {origin: sent(http, "POST", "/v1/uploads", {}, Origin=origin).status_code for origin in OTHERS}
    assert answers == dict.fromkeys(OTHERS, 403)
    nameless = {"Origin": "null", "Host": ""}
    assert http.post("/v1/uploads", headers=nameless).status_code == 403
    # Its page cannot read the answer.
    assert http.get("/v1/jobs", headers={"Origin": "https://evil.example"}).status_code == 200


def test_with_keys_an_origin_says_nothing(api_settings: Settings) -> None:
    """No browser adds a key by itself; and the dashboard's cookie goes with forms of its own alone."""
    with TestClient(create_app(api_settings.model_copy(update={"auth": True}), MemoryQueue())) as http:
        assert http.post("/v1/uploads", headers={"Origin": "https://evil.example"}).status_code == 401
