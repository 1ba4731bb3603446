"""The client: against the app in process, and against servers that fail."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

import httpx
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fastapi.testclient import TestClient
from pydantic import BaseModel

from api import transport
from api.client import Client
from api.deps import Services
from api.frames import FrameLibraryMissing
from api.schemas import JobRequest
from api.transport import DownloadCorrupt, RequestRefused, ServerUnreachable
from db.formats import JsonSchemaFormat
from db.models import JobStatus
from db.specs import Extract
from tests.api.ledger import finish, merge, split, summarize


class Bridge(httpx.BaseTransport):
    """Hands requests to the app in process."""

    def __init__(self, http: TestClient) -> None:
        self.http = http

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        answer = self.http.request(
            request.method, str(request.url.raw_path, "ascii"), content=request.read(), headers=dict(request.headers)
        )
        headers = {k: v for k, v in answer.headers.items() if k not in ("content-encoding", "content-length")}
        return httpx.Response(answer.status_code, headers=headers, content=answer.content)


@pytest.fixture
def client(http: TestClient) -> Iterator[Client]:
    with Client("http://test", transport=Bridge(http), retries=1) as client:
        yield client


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    taken: list[float] = []
    monkeypatch.setattr(transport.time, "sleep", taken.append)
    return taken


def answering(handler: Callable[[httpx.Request], httpx.Response], retries: int = 2) -> Client:
    return Client("http://test", transport=httpx.MockTransport(handler), retries=retries)


def part(values: list[int]) -> bytes:
    sink = io.BytesIO()
    pq.write_table(pa.table({"id": values, "output": [str(v) for v in values]}), sink, write_page_checksum=True)
    return sink.getvalue()


class Tweet(BaseModel):
    mood: Literal["good", "bad"]
    about: str | None = None


@pytest.mark.parametrize("as_request", [False, True])
def test_a_pydantic_model_is_a_schema(client: Client, tweets: Path, as_request: bool) -> None:
    recipe: dict[str, Any] = {"kind": "extract", "json_schema": Tweet}
    body: dict[str, Any] = {"input": str(tweets), "recipe": recipe}
    job = client.submit(JobRequest(input=str(tweets), recipe=Extract(json_schema=Tweet)) if as_request else body)
    assert isinstance(job.spec.recipe, Extract)
    # Nulls inside a schema mean something, and its order is that of the columns.
    assert json.dumps(job.spec.recipe.json_schema) == json.dumps(Tweet.model_json_schema())
    assert recipe["json_schema"] is Tweet
    format = {"type": "json_schema", "json_schema": Tweet}
    job = client.submit({"input": str(tweets), "recipe": {"kind": "chat", "format": format}})
    assert job.spec.structure == JsonSchemaFormat(json_schema=Tweet.model_json_schema())


def test_a_job_from_upload_to_batches(client: Client, services: Services, tweets: Path, tmp_path: Path) -> None:
    sizes: list[int] = []
    upload = client.upload(tweets, told=sizes.append)
    assert sum(sizes) == tweets.stat().st_size
    assert (upload.filename, upload.rows) == ("tweets.parquet", 3)
    job = client.submit({"input": upload.uri, "recipe": {"kind": "summarize"}})
    assert client.ready()
    assert [found.id for found in client.list()] == [job.id]
    claims = split(services, job.id, (2, 1))
    for claim, values in zip(claims, ([1, 2], [3]), strict=True):
        finish(services, claim, part(values))
    merge(services, job.id)
    assert [seen.status for seen in client.watch(job.id)] == [JobStatus.COMPLETED]
    assert client.wait(job.id).counts.succeeded == 3
    batches = list(client.batches(job.id, columns=["id"]))
    assert [batch.to_pydict() for batch in batches] == [{"id": [1, 2]}, {"id": [3]}]
    for library in ("pandas", "polars"):
        frames = list(client.frames(job.id, library, columns=["id"]))
        assert {type(each).__module__.partition(".")[0] for each in frames} == {library}
        assert [list(each["id"]) for each in frames] == [[1, 2], [3]]
    sizes.clear()
    paths = client.download(job.id, tmp_path / "fetched", told=sizes.append)
    assert sizes == [len(part([1, 2])), len(part([3]))]
    names = ["part-00000.parquet", "part-00001.parquet", "_manifest.json", "_SUCCESS"]
    assert [path.name for path in paths] == names
    assert sorted(path.name for path in (tmp_path / "fetched").iterdir()) == sorted(names)
    assert (tmp_path / "fetched" / "part-00001.parquet").read_bytes() == part([3])


def test_frames_of_a_library_that_is_not_there(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "polars", None)
    with pytest.raises(FrameLibraryMissing, match="'polars' are wanted, and it is not installed: pip install polars"):
        client.frames("job_1", "polars")  # before anything is asked of the server


def test_submitting_twice_with_one_key(client: Client, tweets: Path) -> None:
    first = client.submit(summarize(tweets), idempotency_key="k")
    assert client.submit(summarize(tweets, idempotency_key="k")).id == first.id
    assert client.submit(summarize(tweets)).id != first.id


def test_pages_and_cancel(client: Client, tweets: Path) -> None:
    ids = [client.submit(summarize(tweets)).id for _ in range(3)]
    assert [job.id for job in client.list(limit=2)] == ids[:0:-1]
    assert client.cancel(ids[0]).status is JobStatus.CANCELLED
    assert [job.id for job in client.list(status=JobStatus.CANCELLED)] == ids[:1]


def test_a_problem_names_the_field(client: Client, tweets: Path) -> None:
    with pytest.raises(RequestRefused) as caught:
        client.submit(summarize(tweets, keep_columns=["nothing"]))
    problem = caught.value.problem
    assert (problem.status, problem.code, problem.field) == (422, "no_column", "keep_columns")


def test_retries(pauses: list[float]) -> None:
    """The same idempotency key each time, and the pause that the server asks for."""
    keys: list[str] = []

    def handler(request: httpx.Request) -> httpx.Response:
        keys.append(request.headers["idempotency-key"])
        if len(keys) == 1:
            raise httpx.ConnectError("refused")
        return httpx.Response(
            503, headers={"Retry-After": "3"}, json={"title": "t", "status": 503, "detail": "down", "code": "c"}
        )

    with answering(handler) as client, pytest.raises(RequestRefused) as caught:
        client.submit({"input": "x"})
    assert len(keys) == 3
    assert len(set(keys)) == 1
    assert pauses[1] == 3.0
    assert str(caught.value) == "down"


def test_unreachable(pauses: list[float]) -> None:
    def handler(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("refused")

    with answering(handler) as client:
        assert not client.ready()
        with pytest.raises(ServerUnreachable, match="no answer from http://test: refused"):
            client.get("job_x")
    assert len(pauses) == 2


def test_something_else_answers() -> None:
    with answering(lambda request: httpx.Response(404, text="<html>")) as client:
        with pytest.raises(RequestRefused, match="is it a Nightmill server"):
            client.get("job_x")
        assert not client.ready()


def test_a_damaged_download_leaves_nothing(tmp_path: Path) -> None:
    page = {
        "job_id": "j", "status": "completed", "output": "/o", "complete": True, "manifest_url": None, "next": None,
        "files": [{"name": "part-00000.parquet", "rows": 1, "bytes": 1, "sha256": "0" * 64, "url": "/"}],
    }  # fmt: skip

    def handler(request: httpx.Request) -> httpx.Response:
        return (
            httpx.Response(200, json=page)
            if request.url.path.endswith("results")
            else httpx.Response(200, content=b"b")
        )

    with answering(handler) as client, pytest.raises(DownloadCorrupt):
        client.download("j", tmp_path)
    assert list(tmp_path.iterdir()) == []
