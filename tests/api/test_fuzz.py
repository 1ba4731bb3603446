"""Requests made from the OpenAPI document, valid and not: no answer is a 5xx, and each refusal says why."""

from __future__ import annotations

from collections.abc import Iterator
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


@pytest.mark.parametrize(
    ("database_url", "size"),
    [
        pytest.param("sqlite", SMALL, id="small"),
        pytest.param("sqlite", LARGE, id="sqlite", marks=pytest.mark.slow),
        pytest.param("postgres", LARGE, id="postgres", marks=pytest.mark.slow),
    ],
    indirect=["database_url"],
)
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


@pytest.mark.parametrize(
    "path", ["jobs/%00", "jobs?after=%00", "plans/%00", "schedules/%00", "webhooks/%00/deliveries"]
)
def test_a_nul_is_no_error_of_the_server(http: TestClient, path: str) -> None:
    """PostgreSQL takes none in a text."""
    answer = http.get(f"/v1/{path}")
    assert answer.status_code in (404, 422)
    assert answer.json()["code"] != "internal_error"


def integers(
    document: dict[str, Any], schema: dict[str, Any], path: str, seen: frozenset[str]
) -> Iterator[tuple[str, bool]]:
    """Every integer of a schema: where it is, and whether it has an upper bound."""
    reference = schema.get("$ref")
    if reference is not None:
        if reference not in seen:
            named = document["components"]["schemas"][reference.rpartition("/")[2]]
            yield from integers(document, named, path, seen | {reference})
        return
    if schema.get("type") == "integer":
        yield path, not {"maximum", "exclusiveMaximum", "const", "enum"}.isdisjoint(schema)
    for name, inner in schema.get("properties", {}).items():
        yield from integers(document, inner, f"{path}.{name}", seen)
    inside = [*schema.get("anyOf", ()), *schema.get("oneOf", ()), *schema.get("allOf", ())]
    if "items" in schema:
        inside.append(schema["items"])
    for inner in inside:
        yield from integers(document, inner, path, seen)


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_every_integer_of_a_request_is_bounded(app: FastAPI) -> None:
    """No database and no engine has larger ones than 64 bits."""
    document = app.openapi()
    found: dict[str, bool] = {}
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            schemas = [(each["name"], each["schema"]) for each in operation.get("parameters", ())]
            schemas += [("", each["schema"]) for each in operation.get("requestBody", {}).get("content", {}).values()]
            for name, schema in schemas:
                found.update(integers(document, schema, f"{method} {path} {name}", frozenset()))
    assert len(found) > 40
    assert {path for path, bounded in found.items() if not bounded} == set()
