"""Datasets of one file and of a folder, their columns, and the shards they are cut into."""

from __future__ import annotations

import os
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from db import datasets
from db.datasets import DataFile, Dataset
from db.errors import InvalidDataset
from db.plans import ShardPlan, plan_shards


def put(path: Path, num_rows: int = 3) -> Path:
    ids, texts = pa.array(range(num_rows), pa.int64()), pa.array(["t"] * num_rows, pa.string())
    pq.write_table(pa.table({"id": ids, "text": texts}), path)
    return path


def refused(path: Path) -> tuple[str, str | None, str]:
    with pytest.raises(InvalidDataset) as caught:
        datasets.inspect(path)
    return caught.value.code, caught.value.column, caught.value.reason


def test_one_file_whatever_its_name(tmp_path: Path) -> None:
    path = put(tmp_path / "table.data")
    assert datasets.inspect(path) == Dataset(
        (DataFile(path, 3),), pa.schema({"id": pa.int64(), "text": pa.string()}), 3
    )


def test_a_folder_is_read_in_the_order_of_names_and_without_the_hidden_ones(tmp_path: Path) -> None:
    for name, rows in (("b.parquet", 2), ("a.parquet", 1), ("C.PARQUET", 4), ("empty.parquet", 0)):
        put(tmp_path / name, rows)
    for name in ("_SUCCESS", "_metadata.parquet", ".hidden.parquet", "notes.txt", ".part.crc"):
        (tmp_path / name).write_bytes(b"not read")
    (tmp_path / "_tmp").mkdir()
    put(tmp_path / "_tmp" / "part.parquet")
    (tmp_path / ".cache").mkdir()
    dataset = datasets.inspect(tmp_path)
    names = [(file.path.name, file.num_rows) for file in dataset.files]
    assert names == [("C.PARQUET", 4), ("a.parquet", 1), ("b.parquet", 2), ("empty.parquet", 0)]
    assert dataset.num_rows == 7


def test_rows_in_inner_folders_are_not_lost_in_silence(tmp_path: Path) -> None:
    put(tmp_path / "a.parquet")
    (tmp_path / "2024").mkdir()
    (tmp_path / "2024" / "notes.txt").touch()
    assert datasets.inspect(tmp_path).num_rows == 3
    put(tmp_path / "2024" / "b.parquet")
    code, _, reason = refused(tmp_path)
    assert (code, reason) == (
        "nested_folder", "contains the folder '2024'; inner folders of a dataset are named key=value"
    )  # fmt: skip
    (tmp_path / "2024" / "b.parquet").unlink()
    (tmp_path / "year=2024").symlink_to(tmp_path / "2024")
    code, _, reason = refused(tmp_path)
    assert (code, "the link to a folder 'year=2024'" in reason) == ("nested_folder", True)


def test_a_folder_without_parquet_files(tmp_path: Path) -> None:
    (tmp_path / "a.csv").touch()
    assert refused(tmp_path) == ("empty_folder", None, "has no .parquet file")


def test_links_and_odd_names_inside_a_folder(tmp_path: Path) -> None:
    put(tmp_path / "a.parquet")
    (tmp_path / "b.parquet").symlink_to("a.parquet")
    assert refused(tmp_path)[0] == "changed"
    (tmp_path / "b.parquet").unlink()
    before = os.fsencode(tmp_path / "a.parquet")
    for name in (b"\xff.parquet", b"a%2eb.parquet", b"a::b.parquet", b"a\nb.parquet"):
        path = os.fsencode(tmp_path) + b"/" + name
        os.rename(before, path)
        before = path
        assert refused(tmp_path)[0] == "file_name"


@pytest.mark.parametrize(
    ("columns", "column", "reason"),
    [
        ({"id": pa.array([1], pa.int32()), "text": ["t"]}, "id", "column 'id' is int32 here and int64 in 'a.parquet'"),
        ({"id": [1]}, "text", "column 'text' is missing here and string in 'a.parquet'"),
        ({"id": [1], "text": ["t"], "x": [1]}, "x", "column 'x' is int64 here and missing in 'a.parquet'"),
        ({"text": ["t"], "id": [1]}, "text", "column 'text' stands where 'a.parquet' has 'id'"),
    ],
)
def test_files_of_a_folder_must_have_one_schema(
    tmp_path: Path, columns: dict[str, pa.Array], column: str, reason: str
) -> None:
    put(tmp_path / "a.parquet")
    pq.write_table(pa.table(columns), tmp_path / "b.parquet")
    with pytest.raises(InvalidDataset) as caught:
        datasets.inspect(tmp_path)
    assert (caught.value.code, caught.value.file) == ("schema_mismatch", str(tmp_path / "b.parquet"))
    assert (caught.value.column, caught.value.reason) == (column, reason)


def test_metadata_and_nullability_may_differ(tmp_path: Path) -> None:
    put(tmp_path / "a.parquet")
    fields = [pa.field("id", pa.int64(), nullable=False), pa.field("text", pa.string())]
    schema = pa.schema(fields, metadata={"pandas": "{}"})
    pq.write_table(pa.table({"id": [1], "text": ["t"]}, schema=schema), tmp_path / "b.parquet")
    assert datasets.inspect(tmp_path).num_rows == 4


def dataset(type_: pa.DataType) -> Dataset:
    return Dataset((DataFile(Path("/d/a.parquet"), 1),), pa.schema({"c": type_, "other": pa.int64()}), 1)


def message(content: pa.DataType) -> pa.DataType:
    return pa.struct({"role": pa.string(), "content": content, "name": pa.int8()})


TEXTS = [pa.string(), pa.large_string(), pa.string_view(), pa.dictionary(pa.int8(), pa.large_string())]


@pytest.mark.parametrize("type_", TEXTS, ids=str)
def test_columns_of_text(type_: pa.DataType) -> None:
    datasets.check_text(dataset(type_), "c")
    datasets.check_messages(dataset(type_), "c")
    datasets.check_messages(dataset(pa.list_(message(type_))), "c")


@pytest.mark.parametrize(
    "type_", [pa.list_(message(pa.string())), pa.large_list(message(pa.string())), pa.list_(message(pa.string()), 2)]
)
def test_columns_of_messages(type_: pa.DataType) -> None:
    datasets.check_messages(dataset(type_), "c")
    with pytest.raises(InvalidDataset, match="text must be a string column"):
        datasets.check_text(dataset(type_), "c")


@pytest.mark.parametrize(
    "type_",
    [
        pa.binary(), pa.int64(), pa.null(), pa.list_(pa.string()), message(pa.string()), pa.list_(message(pa.binary())),
        pa.list_(pa.struct({"role": pa.string()})), pa.dictionary(pa.int8(), pa.binary()),
    ],
    ids=str,
)  # fmt: skip
def test_columns_of_neither(type_: pa.DataType) -> None:
    for check in (datasets.check_text, datasets.check_messages):
        with pytest.raises(InvalidDataset) as caught:
            check(dataset(type_), "c")
        assert (caught.value.code, caught.value.column) == ("wrong_type", "c")
        assert caught.value.reason.startswith(f"column 'c' is {type_}; ")


def test_missing_columns_are_named_beside_those_there_are() -> None:
    wide = Dataset((DataFile(Path("/d/a.parquet"), 1),), pa.schema({f"c{i}": pa.int64() for i in range(30)}), 1)
    datasets.check_columns(wide, ["c0", "c29"])
    with pytest.raises(InvalidDataset, match=r"^/d/a.parquet: has no column 'x'; its columns are: 'c0', .*'c19', …$"):
        datasets.check_columns(wide, ["c0", "x"])


# -- shards ------------------------------------------------------------------------------------------------------------


def files(*rows: int) -> Dataset:
    return Dataset(tuple(DataFile(Path(f"/d/{i}"), n) for i, n in enumerate(rows)), pa.schema([]), sum(rows))


@pytest.mark.parametrize(
    ("rows", "max_rows", "plans"),
    [
        ((5,), None, [(0, "/d/0", 0, 2, 0), (1, "/d/0", 2, 4, 2), (2, "/d/0", 4, 5, 4)]),
        ((2, 0, 3), None, [(0, "/d/0", 0, 2, 0), (1, "/d/2", 0, 2, 2), (2, "/d/2", 2, 3, 4)]),
        ((2, 3), 3, [(0, "/d/0", 0, 2, 0), (1, "/d/1", 0, 1, 2)]),
        ((1, 3), 1, [(0, "/d/0", 0, 1, 0)]),
        ((1,), 99, [(0, "/d/0", 0, 1, 0)]),
        ((0, 0), None, [(0, "/d/0", 0, 0, 0)]),
    ],
)
def test_shards_cover_the_rows_once_in_order(
    rows: tuple[int, ...], max_rows: int | None, plans: list[tuple[int, str, int, int, int]]
) -> None:
    assert list(plan_shards(files(*rows), 2, max_rows)) == [ShardPlan(*plan) for plan in plans]
