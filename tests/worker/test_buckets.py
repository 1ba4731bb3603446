"""Jobs whose input and output lie in a bucket: the same as on a disk, from the first part to the last leftover."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from sqlalchemy import select, update

from db import control
from db.models import JobStatus, Shard
from db.stores import S3Path, store_of
from db.stores.errors import StorageUnavailable
from tests.s3_server import get, keys, put, settings_on
from tests.worker.factories import Office, spec_of
from worker.checkpoints import Checkpoint, Saved, checkpoint_path
from worker.rows import RowMaker
from worker.run import run

NULL = "__HIVE_DEFAULT_PARTITION__"


def parquet_of(texts: list[str | None], first: int = 0) -> bytes:
    sink = io.BytesIO()
    ids = pa.array(range(first, first + len(texts)), pa.int64())
    pq.write_table(pa.table({"id": ids, "text": pa.array(texts, pa.string())}), sink, row_group_size=100)
    return sink.getvalue()


@pytest.fixture
def office(bucket: S3Path, tmp_path: Path, sqlite_url: str) -> Iterator[Office]:
    made = Office(
        settings_on(
            bucket,
            tmp_path,
            database_url=sqlite_url,
            shard_rows=100,
            lease_seconds=5.0,
            max_attempts=2,
            retry_seconds=0,
            s3_checkpoint_seconds=0,
        )
    )
    yield made
    made.close()


@pytest.fixture
def data(bucket: S3Path) -> S3Path:
    return bucket / "data"


def send_again(office: Office, **values: object) -> None:
    """As if every message had been lost; `values` of the shards besides."""
    office.sent.clear()
    with office.sessions.begin() as session:
        session.execute(update(Shard).values(dispatched_at=0.0, **values))


def table(folder: S3Path) -> pa.Table:
    names = [name for name in keys(folder) if name.startswith("part-")]
    return pa.concat_tables(pq.read_table(io.BytesIO(get(folder / name))) for name in names)


def test_a_job_from_submission_to_manifest(office: Office, data: S3Path) -> None:
    source = put(data / "in.parquet", parquet_of([f"row {i}" for i in range(249)] + [None]))
    office.submit(spec_of(source), data / "out")
    assert office.work() == ["split", "run", "run", "run", "merge"]
    assert office.job().status is JobStatus.COMPLETED_WITH_ERRORS
    parts = [f"part-0000{i}.parquet" for i in range(3)]
    assert keys(data / "out") == ["_SUCCESS", "_errors/part-00002.parquet", "_manifest.json", *parts]
    found = table(data / "out")
    assert found["id"].to_pylist() == list(range(250))
    assert found["output"].to_pylist()[:249] == [f"ROW {i}" for i in range(249)]
    manifest = json.loads(get(data / "out" / "_manifest.json"))
    assert manifest["rows"] == {"input": 250, "succeeded": 249, "failed": 1, "unfinished": 0}
    sizes = [(file["name"], file["bytes"]) for file in manifest["files"]]
    assert sizes == [(name, len(get(data / "out" / name))) for name in parts]
    assert "tester-secret" not in json.dumps(manifest) + json.dumps(office.job().spec)
    letters = pq.read_table(io.BytesIO(get(data / "out" / "_errors" / "part-00002.parquet")))
    assert letters.column_names == ["id", "text", "nightmill_error"]
    assert letters["id"].to_pylist() == [249]
    assert not any((office.process.settings.home / "scratch").iterdir())


def test_from_a_bucket_to_a_disk_and_back(office: Office, data: S3Path, tmp_path: Path) -> None:
    source = put(data / "in.parquet", parquet_of(["a", "b"]))
    office.submit(spec_of(source), tmp_path / "out", "down")
    office.work()
    part = tmp_path / "out" / "part-00000.parquet"
    assert pq.read_table(part)["output"].to_pylist() == ["A", "B"]
    office.submit(spec_of(part, output_prefix="two_"), data / "out", "up")
    office.work()
    assert table(data / "out")["two_output"].to_pylist() == ["A", "B"]


def test_partitions_are_in_the_output_and_in_the_prompt(office: Office, data: S3Path) -> None:
    for day, row in (("2", 0), ("10", 1), (NULL, 2)):
        put(data / "in" / f"day={day}" / "a.parquet", parquet_of([f"t{row}", None], first=10 * row))
    recipe = {"kind": "generate", "template": "{{ text }} on {{ day }}", "columns": ["day", "text"]}
    office.submit(spec_of(data / "in", recipe=recipe), data / "out")
    office.work()
    rows = table(data / "out").to_pylist()
    assert [(row["id"], row["day"], row["output"]) for row in rows if row["error"] is None] == [
        (10, 10, "T1 ON 10"),
        (0, 2, "T0 ON 2"),
    ]
    assert [(row["id"], row["day"]) for row in rows[4:]] == [(20, None), (21, None)]  # a template takes no null
    assert json.loads(get(data / "out" / "_manifest.json"))["prepared"] == {"partitions": [["day", "int32"]]}
    letters = [name for name in keys(data / "out") if name.startswith("_errors")]
    assert len(letters) == 3
    assert pq.read_table(io.BytesIO(get(data / "out" / letters[0]))).to_pylist()[0]["day"] == 10


@pytest.mark.parametrize("place", ["bucket", "disk"])
@pytest.mark.parametrize("when", ["before the split", "after the split"])
def test_an_input_that_changed_is_not_computed(
    office: Office, data: S3Path, tmp_path: Path, place: str, when: str
) -> None:
    source = data / "in.parquet" if place == "bucket" else tmp_path / "in.parquet"

    def write(text: str) -> None:
        if isinstance(source, S3Path):
            put(source, parquet_of([text]))
        else:
            source.write_bytes(parquet_of([text]))
            os.utime(source, ns=(hash(text) % 10**9, hash(text) % 10**9))

    write("a")
    office.submit(spec_of(source), data / "out")
    if when == "after the split":
        office.work(until=lambda wakeup: wakeup.task == "run")
    write("b")
    send_again(office)
    office.work()
    job = office.job()
    assert (job.status, job.error_code) == (JobStatus.FAILED, "changed")
    assert "when the job was submitted" in str(job.error_message)
    assert str(source) in str(job.error_message)


def test_a_part_put_before_the_crash_is_adopted(office: Office, data: S3Path, monkeypatch: pytest.MonkeyPatch) -> None:
    office.submit(spec_of(put(data / "in.parquet", parquet_of(["a", "b"]))), data / "out")
    office.work(until=lambda wakeup: wakeup.task == "run")

    def away(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("db.shards.finish", away)
        with pytest.raises(KeyboardInterrupt):
            run(office.process)
    before = get(data / "out" / "part-00000.parquet")
    send_again(office, lease_until=0.0)
    office.work()
    assert office.job().status is JobStatus.COMPLETED
    assert get(data / "out" / "part-00000.parquet") == before


def test_rows_finished_before_a_crash_are_not_computed_again(
    office: Office, data: S3Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store fails once the part is to be put; the next attempt takes every row from the checkpoints."""
    office.submit(spec_of(put(data / "in.parquet", parquet_of([f"r{i}" for i in range(80)]))), data / "out")
    office.work(until=lambda wakeup: wakeup.task == "run")
    store = store_of(office.process.settings.roots[-1])
    real, asked = store._client.call, 0  # type: ignore[attr-defined]

    def failing(operation: str, place: S3Path, **parameters: Any) -> Any:
        if parameters.get("Key", "").endswith("out/part-00000.parquet") and operation == "put_object":
            raise StorageUnavailable(place, "the object store answered 503 SlowDown to put_object")
        return real(operation, place, **parameters)

    def request(*given: Any) -> Any:
        nonlocal asked
        asked += 1
        return make(*given)

    make = RowMaker.asking
    with monkeypatch.context() as patch:
        patch.setattr(store._client, "call", failing)  # type: ignore[attr-defined]
        run(office.process)
    with office.sessions.begin() as session:
        (shard,) = session.scalars(select(Shard))
        assert (shard.error_code, shard.part) == ("storage_unavailable", None)
    assert all(name.startswith("_tmp/part-00000.parquet.00000001.rows.") for name in keys(data / "out"))
    assert len(keys(data / "out")) > 1
    monkeypatch.setattr(RowMaker, "asking", request)
    send_again(office)
    office.work()
    assert office.job().status is JobStatus.COMPLETED
    assert table(data / "out")["output"].to_pylist() == [f"R{i}" for i in range(80)]
    assert asked == 0
    assert keys(data / "out") == ["_SUCCESS", "_manifest.json", "part-00000.parquet"]


def test_an_attempt_of_many_objects_has_one_range_that_can_have_died(data: S3Path) -> None:
    for fence in (1, 2):
        checkpoint = Checkpoint(checkpoint_path(data / "out", 0, fence), pa.schema([]), "", 0.0)
        for first in range(12):
            checkpoint.begin(first, first + fence)
        checkpoint.close()
    saved = Saved.find(data / "out", 0, 99)
    assert (saved.marks, saved.begun) == (24, [(11, 12), (11, 13)])


def test_a_cancelled_job_without_a_part_has_a_manifest(office: Office, data: S3Path) -> None:
    office.submit(spec_of(put(data / "in.parquet", parquet_of(["a"] * 300))), data / "out")
    office.work(until=lambda wakeup: wakeup.task == "run")
    send_again(office, fence=1)  # they were begun
    with office.sessions.begin() as session:
        control.cancel(session, "job", "default")
    office.work()
    assert office.job().status is JobStatus.CANCELLED
    assert keys(data / "out") == ["_manifest.json"]


def test_what_lies_at_the_output_already_is_refused_at_the_split(office: Office, data: S3Path) -> None:
    office.submit(spec_of(put(data / "in.parquet", parquet_of(["a"]))), data / "out")
    put(data / "out" / "theirs", b"x")
    office.work()
    job = office.job()
    assert (job.status, job.error_code) == (JobStatus.FAILED, "dataset_refused")
    assert keys(data / "out") == ["theirs"]
