"""The object store: first writer wins, lost answers, unfinished uploads, ranges of one version."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from db import parquet
from db.errors import InvalidDataset
from db.publish import Published, digest, publish, sweep_tmp
from db.stores import S3Path, store_of
from db.stores.errors import StorageRefused, StorageUnavailable, StorageUnsafe
from db.stores.s3 import S3Store
from tests.db.ledger import together
from tests.s3_server import get, keys, put

PIECE = 5 << 20  # the least that a store takes


def of(data: bytes, created: bool) -> Published:
    return Published(created, len(data), hashlib.sha256(data).hexdigest())


def uploads(store: S3Store, bucket: S3Path) -> list[Any]:
    return list(store._client.call("list_multipart_uploads", bucket).get("Uploads", []))


def test_the_first_writer_makes_the_file_and_later_ones_learn_of_it(bucket: S3Path) -> None:
    folder = bucket / "data" / "out"
    assert publish(folder, "part", lambda file: file.write(b"first") and None) == of(b"first", created=True)
    assert publish(folder, "part", lambda file: file.write(b"second!") and None) == of(b"first", created=False)
    assert get(folder / "part") == b"first"
    assert keys(bucket) == ["data/out/part"]
    assert publish(folder, "empty", lambda file: None) == of(b"", created=True)
    assert get(folder / "empty") == b""


def test_of_6_writers_at_once_one_wins(bucket: S3Path) -> None:
    data = [bytes([number]) * 100 for number in range(6)]
    made = together(6, lambda n: publish(bucket, "part", lambda f: f.write(data[n]) and None))
    (winner,) = [number for number, published in enumerate(made) if published.created]
    assert made == [of(data[winner], created=number == winner) for number in range(6)]
    assert get(bucket / "part") == data[winner]


def test_a_large_file_in_pieces_comes_too_late_as_well(bucket: S3Path) -> None:
    store = S3Store(bucket.service, whole_bytes=PIECE)
    first, second = b"1" * (PIECE + 100), b"2" * (PIECE + 100)
    assert store.create(bucket / "part", lambda f: f.write(first) and None) == of(first, created=True)
    assert store.create(bucket / "part", lambda f: f.write(second) and None) == of(first, created=False)
    assert get(bucket / "part") == first
    assert uploads(store, bucket) == []


def test_a_file_of_someone_else_is_digested(bucket: S3Path) -> None:
    put(bucket / "part", b"theirs")
    assert publish(bucket, "part", lambda file: None) == of(b"theirs", created=False)
    assert digest(bucket / "part") == (6, hashlib.sha256(b"theirs").hexdigest())


def test_an_exception_in_the_writer_leaves_nothing(bucket: S3Path) -> None:
    def write(file: Any) -> None:
        with pq.ParquetWriter(file, pa.schema({"a": pa.int64()})) as writer:
            writer.write_table(pa.table({"a": [1]}))
            raise RuntimeError("the engine broke")

    with pytest.raises(RuntimeError, match="the engine broke"):
        publish(bucket, "part.parquet", write)
    assert keys(bucket) == []


class Flaky:
    """A client some of whose calls do their work and lose the answer, or fail before."""

    def __init__(self, store: S3Store, fail: Callable[[str, int], str | None]) -> None:
        self.calls: list[str] = []
        self._call, self._fail = store._client.call, fail
        store._client.call = self.call  # type: ignore[method-assign]

    def call(self, operation: str, place: S3Path, **parameters: Any) -> dict[str, Any]:
        self.calls.append(operation)
        verdict = self._fail(operation, self.calls.count(operation))
        if verdict == "before":
            raise StorageUnavailable(place, "fails")
        answer = self._call(operation, place, **parameters)
        if verdict == "lost" and hasattr(parameters.get("Body"), "seek"):
            parameters["Body"].seek(0)
        # What botocore does by itself when the answer is lost: it asks again, and gives the second answer.
        return self._call(operation, place, **parameters) if verdict == "lost" else answer


@pytest.mark.parametrize("size", [100, PIECE + 100])
def test_an_answer_that_is_lost_after_the_commit_is_no_one_elses_file(bucket: S3Path, size: int) -> None:
    store = S3Store(bucket.service, whole_bytes=PIECE)
    commit = "put_object" if size < PIECE else "complete_multipart_upload"
    Flaky(store, lambda operation, count: "lost" if operation == commit else None)
    data = b"x" * size
    assert store.create(bucket / "part", lambda file: file.write(data) and None) == of(data, created=True)
    assert keys(bucket) == ["part"]
    assert uploads(store, bucket) == []


def test_an_upload_that_breaks_off_is_aborted(bucket: S3Path) -> None:
    store = S3Store(bucket.service, whole_bytes=PIECE)
    Flaky(store, lambda operation, count: "before" if (operation, count) == ("upload_part", 2) else None)
    with pytest.raises(StorageUnavailable):
        store.create(bucket / "part", lambda file: file.write(bytes(2 * PIECE)) and None)
    assert keys(bucket) == []
    assert uploads(store, bucket) == []


def test_the_sweep_takes_what_killed_writers_left(bucket: S3Path) -> None:
    store = S3Store(bucket.service)
    put(bucket / "out" / "_tmp" / "part-00000.parquet.00000001.rows.000000", b"x")
    put(bucket / "out" / "part-00000.parquet", b"x")
    put(bucket / "other" / "_tmp" / "x", b"x")
    assert sweep_tmp(bucket / "out", older_than=3600) == 0
    for key in ("out/part-00001.parquet", "other/part-00001.parquet"):
        store._client.call("create_multipart_upload", bucket, Key=key)
    assert sweep_tmp(bucket / "out", older_than=-5) == 2
    assert keys(bucket) == ["other/_tmp/x", "out/part-00000.parquet"]
    assert [upload["Key"] for upload in uploads(store, bucket)] == ["other/part-00001.parquet"]


def test_a_store_that_takes_a_second_put_is_refused_once_it_is_tried(
    bucket: S3Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = S3Store(bucket.service)
    store.prepare(bucket / "out")
    assert keys(bucket) == []
    real = store._client.call

    def careless(operation: str, place: S3Path, **parameters: Any) -> dict[str, Any]:
        parameters.pop("IfNoneMatch", None)
        return real(operation, place, **parameters)

    monkeypatch.setattr(store._client, "call", careless)
    store.prepare(bucket / "out")  # known already
    store._probed.clear()
    with pytest.raises(StorageUnsafe, match="takes a second put where If-None-Match forbids it; choose another one"):
        store.prepare(bucket / "out")
    assert keys(bucket) == []


def test_what_a_killed_probe_left_does_not_fill_a_folder(bucket: S3Path) -> None:
    store = store_of(bucket)
    put(bucket / "out" / "_tmp" / "probe.1", b"")
    put(bucket / "out" / "", b"")  # as consoles make folders
    assert store.is_empty(bucket / "out")
    put(bucket / "out" / "_tmp" / "part-00000.parquet.00000001.rows.000000", b"x")
    assert not store.is_empty(bucket / "out")


def table(num_rows: int) -> bytes:
    sink = io.BytesIO()
    columns = {"id": range(num_rows), "text": [f"{i} {'x' * 200}" for i in range(num_rows)]}
    pq.write_table(pa.table(columns), sink, row_group_size=num_rows, write_page_checksum=True, compression="none")
    return sink.getvalue()


def test_rows_are_read_by_ranges(bucket: S3Path) -> None:
    place = put(bucket / "in.parquet", table(5000))
    found = [row for batch in parquet.read(place, 1234, 4321, ["id"], 100) for row in batch.column("id").to_pylist()]
    assert found == list(range(1234, 4321))


def test_an_object_that_is_replaced_while_it_is_read(bucket: S3Path) -> None:
    place = put(bucket / "in.parquet", table(20_000))
    batches = parquet.read(place, 0, 20_000, batch_rows=100)
    next(batches)
    put(place, table(20_001))
    with pytest.raises(InvalidDataset, match="was replaced while it was read") as caught:
        list(batches)
    assert (caught.value.code, caught.value.file) == ("changed", str(place))


def test_what_cannot_be_opened(bucket: S3Path) -> None:
    with pytest.raises(InvalidDataset, match="does not exist") as caught:
        list(parquet.read(bucket / "absent.parquet", 0, 1))
    assert caught.value.code == "not_a_file"
    put(bucket / "noise.parquet", b"noise" * 100)
    with pytest.raises(InvalidDataset, match="not a readable Parquet file"):
        list(parquet.read(bucket / "noise.parquet", 0, 1))
    put(bucket / "empty.parquet", b"")
    with pytest.raises(InvalidDataset) as caught:
        list(parquet.read(bucket / "empty.parquet", 0, 1))
    assert caught.value.code == "invalid_parquet"
    absent = S3Path("no-such-bucket", "x", bucket.service)
    with pytest.raises(StorageRefused, match="there is no such bucket"):
        store_of(absent).is_empty(absent)


def test_an_outage_is_an_error_of_the_machine_and_not_of_the_file(bucket: S3Path) -> None:
    place = put(bucket / "in.parquet", table(20_000))
    store = store_of(place)
    real = store._client.call  # type: ignore[attr-defined]
    batches = parquet.read(place, 0, 20_000, batch_rows=100)
    next(batches)

    def away(operation: str, place: S3Path, **parameters: Any) -> dict[str, Any]:
        raise StorageUnavailable(place, "the object store does not answer: ConnectTimeoutError")

    store._client.call = away  # type: ignore[attr-defined]
    try:
        with pytest.raises(StorageUnavailable, match=r"in.parquet: the object store does not answer"):
            list(batches)
    finally:
        store._client.call = real  # type: ignore[attr-defined]


def test_journals_are_read_in_their_order(bucket: S3Path) -> None:
    journal = store_of(bucket).journal(bucket / "a.rows")
    for data in (b"1", b"2"):
        journal.append(data)
    journal.close()
    assert [(key, get(bucket / key)) for key in keys(bucket)] == [("a.rows.000000", b"1"), ("a.rows.000001", b"2")]
    store_of(bucket).remove([bucket / key for key in keys(bucket)])
    store_of(bucket).remove([])
    assert keys(bucket) == []


def test_one_large_row_group_is_read_in_bounded_memory(bucket: S3Path) -> None:
    """40 MB in one row group: Arrow holds the batch that it gives and the pages that it reads, and no more."""
    place = put(bucket / "large.parquet", table(180_000))
    pool = pa.default_memory_pool()
    before, most, rows = pool.bytes_allocated(), 0, 0
    for batch in parquet.read(place, 0, 180_000):
        rows += batch.num_rows
        most = max(most, pool.bytes_allocated() - before)
    assert rows == 180_000
    assert most < 12 << 20
