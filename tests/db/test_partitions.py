"""Folders key=value: columns of the rows below, with the types that Arrow finds; on disk and in a bucket alike."""

from __future__ import annotations

import io
import itertools
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from db import datasets, parquet
from db.errors import InvalidDataset
from db.partitions import Partitions
from db.stores import Place, S3Path
from tests.s3_server import put

NULL = "__HIVE_DEFAULT_PARTITION__"
Write = Callable[..., Place]


@pytest.fixture(params=["disk", "bucket"])
def write(request: pytest.FixtureRequest, tmp_path: Path) -> Write:
    """`write("day=1/a.parquet", **columns)`; gives the dataset's folder."""
    base: Place = tmp_path / "in" if request.param == "disk" else request.getfixturevalue("bucket") / "in"
    counter = itertools.count()

    def make(name: str, **columns: object) -> Place:
        sink = io.BytesIO()
        pq.write_table(pa.table({"id": [next(counter)], "text": [name]} | columns), sink)
        if isinstance(base, S3Path):
            put(base / name, sink.getvalue())
        else:
            (base / name).parent.mkdir(parents=True, exist_ok=True)
            (base / name).write_bytes(sink.getvalue())
        return base

    return make


def names(dataset: datasets.Dataset, base: Place) -> list[str]:
    return [str(file.path)[len(str(base)) + 1 :] for file in dataset.files]


def rows(dataset: datasets.Dataset) -> list[dict[str, object]]:
    found: list[dict[str, object]] = []
    for file in dataset.files:
        for batch in parquet.read(file.path, 0, file.num_rows, constants=dataset.partitions.values(file.path)):
            assert batch.schema.equals(dataset.schema)
            found += batch.to_pylist()
    return found


def test_keys_are_columns_and_files_are_in_order(write: Write) -> None:
    for name in (
        "day=2/hour=b/x.parquet",
        "day=10/hour=a/x.parquet",
        "day=2/hour=b/a.parquet",
        f"day={NULL}/hour=/x.parquet",
    ):
        base = write(name)
    base = write("_tmp/day=9/hour=z/x.parquet")
    dataset = datasets.inspect(base)
    assert names(dataset, base) == [
        "day=10/hour=a/x.parquet", "day=2/hour=b/a.parquet", "day=2/hour=b/x.parquet", f"day={NULL}/hour=/x.parquet"
    ]  # fmt: skip
    assert dataset.schema == pa.schema({"id": pa.int64(), "text": pa.string(), "day": pa.int32(), "hour": pa.string()})
    assert [(row["day"], row["hour"]) for row in rows(dataset)] == [(10, "a"), (2, "b"), (2, "b"), (None, "")]
    assert Partitions.of(dataset.partitions.as_json()) == dataset.partitions


@pytest.mark.parametrize(
    "values",
    [
        ["1", "2"], ["01", "1"], ["-5", "0"], ["2147483647", "-2147483648"], ["1", "2147483648"], ["1", "x"], ["1.5"],
        ["1", NULL], ["x", NULL], ["2026-11-01"], ["a%20b", "c+d"], ["true"], ["+1"], ["1_000"], ["\u0661"], [" 1"],
        ["-"],
    ],
    ids=str,
)  # fmt: skip
def test_types_are_those_that_arrow_finds(values: list[str], tmp_path: Path) -> None:
    for value in values:
        (tmp_path / f"k={value}").mkdir()
        pq.write_table(pa.table({"id": [1]}), tmp_path / f"k={value}" / "a.parquet")
    dataset = datasets.inspect(tmp_path)
    theirs = ds.dataset(tmp_path, format="parquet", partitioning="hive")
    assert dataset.schema == theirs.schema
    assert sorted(str(row["k"]) for row in rows(dataset)) == sorted(map(str, theirs.to_table()["k"].to_pylist()))


def test_a_file_that_lies_under_other_keys(write: Write) -> None:
    write("day=1/a.parquet")
    base = write("hour=1/b.parquet")
    with pytest.raises(InvalidDataset, match=r"hour=1/b.parquet: lies under the keys 'hour', and .* under 'day'") as e:
        datasets.inspect(base)
    assert e.value.code == "partition_mismatch"
    base = write("c.parquet")
    with pytest.raises(InvalidDataset, match=r"lies under the keys 'day', and .*c.parquet under none"):
        datasets.inspect(base)


def test_a_key_that_is_a_column_too(write: Write) -> None:
    base = write("id=1/a.parquet")
    with pytest.raises(InvalidDataset, match="has a column 'id', which is also a key") as caught:
        datasets.inspect(base)
    assert (caught.value.code, caught.value.column) == ("partition_conflict", "id")


@pytest.mark.parametrize("name", ["=1/a.parquet", "k=1/k=2/a.parquet", "k=%ff/a.parquet", "k=a%2fb/a.parquet"])
def test_folders_that_cannot_be_keys(write: Write, name: str) -> None:
    base = write(name)
    with pytest.raises(InvalidDataset) as caught:
        datasets.inspect(base)
    assert caught.value.code in ("file_name", "partition_mismatch")


def test_patterns(write: Write) -> None:
    for name in (
        "day=1/a.parquet",
        "day=2/a.parquet",
        "day=2/b.parquet",
        "day=12/_a.parquet",
        "x/c.parquet",
        "x/d.txt",
    ):
        base = write(name)
    cases = {
        "day=*/a.parquet": ["day=1/a.parquet", "day=2/a.parquet"],
        "day=2/*": ["a.parquet", "b.parquet"],
        "day=*2/*.parquet": ["day=2/a.parquet", "day=2/b.parquet"],
        "day=2*": ["day=2/a.parquet", "day=2/b.parquet"],
        "*/[ab].parquet": None,
        "*/c.parquet": ["x/c.parquet"],
        "day=*/_*.parquet": ["day=12/_a.parquet"],
    }
    for pattern, expected in cases.items():
        place = base
        for part in pattern.split("/"):
            place = place / part
        if expected is None:
            with pytest.raises(InvalidDataset, match=r"has no \.parquet file"):
                datasets.inspect(place)
            continue
        dataset = datasets.inspect(place)
        assert names(dataset, datasets.base_of(place)) == expected, pattern
        assert [name for name, _ in dataset.partitions.keys] == ["day"] * ("day=" in expected[0])
    with pytest.raises(InvalidDataset, match="contains the folder 'x'"):
        datasets.inspect(base)


def test_the_version_changes_with_any_file(write: Write) -> None:
    base = write("a.parquet")
    first = datasets.inspect(base).version
    assert datasets.inspect(base).version == first
    write("b.parquet")
    second = datasets.inspect(base).version
    write("b.parquet")  # one id more: as many bytes
    assert len({first, second, datasets.inspect(base).version}) == 3
