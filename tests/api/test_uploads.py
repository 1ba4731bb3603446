"""The route of uploads, both ways of sending a file."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from db.settings import Settings
from tests.api.ledger import summarize

RAW = {"Content-Type": "application/vnd.apache.parquet"}


def stored(settings: Settings) -> list[Path]:
    return [path for path in settings.uploads.rglob("*") if path.is_file()]


@pytest.mark.parametrize("way", ["form", "raw", "chunked"])
def test_upload(http: TestClient, tweets: Path, api_settings: Settings, way: str) -> None:
    content = tweets.read_bytes()
    if way == "form":
        answer = http.post("/v1/uploads", files={"file": ("tweets.parquet", content)})
    else:
        parts: Iterator[bytes] = (content[i : i + 100] for i in range(0, len(content), 100))
        body = content if way == "raw" else parts
        answer = http.post("/v1/uploads?filename=tweets.parquet", content=body, headers=RAW)
    assert answer.status_code == 201, answer.text
    upload = answer.json()
    assert (upload["filename"], upload["bytes"], upload["rows"]) == ("tweets.parquet", len(content), 3)
    assert upload["uri"] == answer.headers["location"] == f"upload://{upload['id']}"
    assert [path.read_bytes() for path in stored(api_settings)] == [content]
    job = http.post("/v1/jobs", json={**summarize(tweets), "input": upload["uri"]})
    assert (job.status_code, job.json()["counts"]["total"]) == (202, 3)


def test_not_parquet(http: TestClient, api_settings: Settings) -> None:
    answer = http.post("/v1/uploads", files={"file": ("x.parquet", b"no parquet at all")})
    problem = answer.json()
    assert (answer.status_code, problem["code"], problem["field"]) == (422, "invalid_parquet", "file")
    assert problem["file"] == "x.parquet"
    assert stored(api_settings) == []


def test_no_file_in_the_form(http: TestClient) -> None:
    answer = http.post("/v1/uploads", files={"other": ("x.parquet", b"x")})
    assert (answer.status_code, answer.json()["field"]) == (422, "file")


@pytest.mark.parametrize("way", ["form", "declared", "chunked"])
def test_too_large(http: TestClient, api_settings: Settings, way: str) -> None:
    content = b"x" * 200_000
    if way == "form":
        answer = http.post("/v1/uploads", files={"file": ("x.parquet", content)})
    else:
        body: bytes | Iterator[bytes] = content if way == "declared" else iter([content[:70_000]] * 3)
        answer = http.post("/v1/uploads", content=body, headers=RAW)
    assert (answer.status_code, answer.headers["content-type"]) == (413, "application/problem+json")
    assert stored(api_settings) == []


def test_a_large_json_body(http: TestClient) -> None:
    answer = http.post("/v1/jobs", content=b'{"input": "' + b"x" * (9 << 20) + b'"}')
    assert answer.status_code == 413
