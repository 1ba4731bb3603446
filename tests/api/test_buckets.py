"""The API over buckets: submission, refusals, and results served through it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from api.app import create_app
from db.stores import S3Path, store_of
from db.stores.errors import StorageUnavailable
from tests.api.conftest import MemoryQueue
from tests.s3_server import keys, put, settings_on
from tests.worker.factories import ECHO, Office
from tests.worker.test_buckets import parquet_of


@pytest.fixture
def office(bucket: S3Path, tmp_path: Path, sqlite_url: str) -> Iterator[Office]:
    """A worker on the same ledger as `http`."""
    # What the API sends goes to nobody, so the worker's own look finds all of it due again.
    more = {"shard_rows": 2, "sweep_seconds": 3600, "redispatch_seconds": 0.001, "model": "fake"}
    settings = settings_on(bucket, tmp_path, database_url=sqlite_url, **more)
    made = Office(settings)
    yield made
    made.close()


@pytest.fixture
def http(office: Office) -> Iterator[TestClient]:
    with TestClient(create_app(office.process.settings, MemoryQueue()), raise_server_exceptions=False) as client:
        yield client


def submit(http: TestClient, source: object, output: object) -> tuple[int, dict[str, object]]:
    answer = http.post("/v1/jobs", json={"input": str(source), "output": str(output), "recipe": ECHO})
    return answer.status_code, answer.json()


def test_a_job_is_served_from_a_bucket_while_it_runs_and_after(
    http: TestClient, office: Office, bucket: S3Path
) -> None:
    data = bucket / "data"
    put(data / "in" / "day=1" / "a.parquet", parquet_of(["a", "b", None]))
    put(data / "in" / "day=2" / "a.parquet", parquet_of(["c"]))
    status, job = submit(http, f"{data}/in/*", data / "out")
    assert (status, job["counts"]["total"]) == (202, 4)  # type: ignore[index]
    office.work(until=lambda wakeup: wakeup.task == "run" and "part-00000.parquet" in keys(data / "out"))
    answer = http.get(f"/v1/jobs/{job['id']}/results")
    page = answer.json()
    assert (page["partial"], page["complete"], page["ranges"]) == (True, False, [{"first": 0, "stop": 2}])
    assert (
        "Shown once the job has ended" in http.get(f"/jobs/{job['id']}").text
    )  # a page that comes again and again asks no bucket
    office.work()
    page = http.get(f"/v1/jobs/{job['id']}/results").json()
    assert (page["partial"], page["complete"], page["ranges"]) == (False, True, [{"first": 0, "stop": 4}])
    whole = http.get(page["files"][0]["url"])
    assert len(whole.content) == page["files"][0]["bytes"] == int(whole.headers["content-length"])
    assert whole.headers["nightmill-partial"] == "false"
    for asked, start, stop in (("bytes=4-9", 4, 10), ("bytes=4-", 4, None), ("bytes=-5", -5, None)):
        part = http.get(page["files"][0]["url"], headers={"Range": asked})
        assert (part.status_code, part.content) == (206, whole.content[start:stop])
    size = len(whole.content)
    assert part.headers["content-range"] == f"bytes {size - 5}-{size - 1}/{size}"
    assert http.get(page["files"][0]["url"], headers={"Range": "bytes=0-1,3-4"}).content == whole.content
    beyond = http.get(page["files"][0]["url"], headers={"Range": f"bytes={size}-"})
    assert (beyond.status_code, beyond.headers["content-range"]) == (416, f"bytes */{size}")
    assert json.loads(http.get(page["manifest_url"]).content)["rows"]["failed"] == 1
    assert http.get(f"/v1/jobs/{job['id']}/results/part-00009.parquet").status_code == 404
    shown = http.get(f"/jobs/{job['id']}").text
    assert '<td class="text">a</td><td class="text">A</td>' in shown
    assert '<span class="state bad">template_error</span></td><td class="num">1</td>' in shown
    (letters,) = http.get(f"/v1/jobs/{job['id']}/errors").json()["files"]
    assert http.get(letters["url"]).content.startswith(b"PAR1")
    retried = http.post(f"/v1/jobs/{job['id']}/retry").json()
    assert (retried["input"], retried["counts"]["total"]) == (f"{data}/out/_errors", 1)
    office.work()
    assert http.get(f"/v1/jobs/{retried['id']}").json()["counts"]["failed"] == 1


def test_refusals(http: TestClient, bucket: S3Path) -> None:
    data = bucket / "data"
    source = put(data / "in" / "a.parquet", parquet_of(["a"]))
    put(bucket / "elsewhere" / "a.parquet", parquet_of(["a"]))
    cases = [
        (f"{bucket}/elsewhere/a.parquet", data / "out", "input", "dataset_refused"),
        (f"s3://key:secret@{bucket.bucket}/data/in/a.parquet", data / "out", "input", "dataset_refused"),
        (f"{source}?endpoint_override=127.0.0.1:9", data / "out", "input", "dataset_refused"),
        (data / "absent", data / "out", "input", "dataset_refused"),
        (source, bucket / "elsewhere" / "out", "output", "dataset_refused"),
        (source, data / "in", "output", "dataset_refused"),
        (data / "in", data / "in" / "out", "output", "invalid_job"),
        (data / "in" / "*.parquet", data / "in" / "out", "output", "invalid_job"),
    ]
    for given, output, field, code in cases:
        status, problem = submit(http, given, output)
        assert (status, problem["field"], problem["code"]) == (422, field, code), (given, output)
        assert "secret" not in json.dumps(problem)
    assert keys(bucket) == ["data/in/a.parquet", "elsewhere/a.parquet"]


def test_a_store_that_is_away_is_503(
    http: TestClient, bucket: S3Path, office: Office, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = put(bucket / "data" / "a.parquet", parquet_of(["a"]))
    store = store_of(office.process.settings.roots[-1])

    def away(operation: str, place: S3Path, **_: object) -> None:
        raise StorageUnavailable(place, "the object store does not answer: ConnectTimeoutError")

    monkeypatch.setattr(store._client, "call", away)  # type: ignore[attr-defined]
    status, problem = submit(http, source, bucket / "data" / "out")
    assert (status, problem["code"]) == (503, "storage_unavailable")
