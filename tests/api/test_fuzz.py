"""Requests made from the OpenAPI document, valid and not: no answer is a 5xx, and each refusal says why."""

from __future__ import annotations

from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient
from hypothesis import HealthCheck, given, settings

schemathesis = pytest.importorskip("schemathesis")
SMALL = settings(max_examples=4, deadline=None, suppress_health_check=list(HealthCheck), print_blob=True)
LARGE = settings(SMALL, max_examples=200)


def as_file(part: Any) -> tuple[str | None, bytes]:
    """A part of a form as a client sends it: bytes, whatever the strategy made."""
    name, content = (part[0], part[1]) if isinstance(part, tuple) else (None, part)
    return name, content if isinstance(content, bytes) else str(content).encode(errors="replace")


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
@pytest.mark.parametrize("size", [SMALL, pytest.param(LARGE, marks=pytest.mark.slow)], ids=["small", "large"])
def test_no_request_breaks_the_api(http: TestClient, app: FastAPI, size: settings) -> None:
    document = schemathesis.openapi.from_dict(app.openapi())
    seen: list[str] = []
    for result in document.get_all_operations():
        operation = result.ok()
        seen.append(operation.label)

        @size
        @given(case=operation.as_strategy())
        def check(case: schemathesis.Case) -> None:
            sent = case.as_transport_kwargs(base_url="http://testserver")
            sent.pop("cookies", None)
            if "files" in sent:  # the client sends nothing else
                sent["files"] = [(name, as_file(part)) for name, part in sent["files"]]
            answer = http.request(**sent, follow_redirects=False)
            assert answer.status_code < 500, (case.formatted_path, answer.text)
            if answer.status_code >= 400:  # a problem, or the error of the OpenAI routes
                problem = answer.headers["content-type"].startswith("application/problem+json")
                assert problem or isinstance(answer.json()["error"]["message"], str), answer.text

        check()
    assert len(seen) == sum(len(methods) for methods in app.openapi()["paths"].values())
