"""Arrow cells as Python values; text that is not UTF-8 is refused row by row, in every layout that holds text."""

from __future__ import annotations

import pyarrow as pa
import pytest

from worker.cells import read_rows
from worker.recipes import RowRefused

BAD = b"ab\xff"


def unchecked(values: list[bytes | None], kind: pa.DataType) -> pa.Array:
    """A text array over bytes that nobody has checked, as a Parquet reader makes one."""
    if kind == pa.string_view():
        return pa.array(values, pa.binary_view()).view(kind)
    data = pa.array(values, pa.large_binary() if kind == pa.large_string() else pa.binary())
    return pa.Array.from_buffers(kind, len(values), data.buffers())


def rows(array: pa.Array) -> list[object]:
    batch = pa.RecordBatch.from_arrays([array], ["c"])
    return [row.code if isinstance(row, RowRefused) else row["c"] for row in read_rows(batch, ["c"])]


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.string_view()])
def test_text(kind: pa.DataType) -> None:
    array = unchecked(["é".encode(), BAD, None, b""], kind)
    assert rows(array) == ["é", "invalid_utf8", None, ""]


def test_dictionary() -> None:
    array = pa.DictionaryArray.from_arrays(pa.array([0, 1, None, 0]), unchecked([b"x", BAD], pa.string()))
    assert rows(array) == ["x", "invalid_utf8", None, "x"]


@pytest.mark.parametrize("make", [pa.ListArray, pa.LargeListArray])
def test_messages(make: type[pa.ListArray]) -> None:
    content = unchecked([b"hi", BAD, b"yo"], pa.string())
    structs = pa.StructArray.from_arrays([pa.array(["user"] * 3), content], ["role", "content"])
    offsets = pa.array([0, 1, 2, 3], pa.int64() if make is pa.LargeListArray else pa.int32())
    assert rows(make.from_arrays(offsets, structs)) == [
        [{"role": "user", "content": "hi"}],
        "invalid_utf8",
        [{"role": "user", "content": "yo"}],
    ]


def test_other_types_pass() -> None:
    assert rows(pa.array([1, None])) == [1, None]
    assert rows(pa.array([[1], None])) == [[1], None]
    assert rows(pa.nulls(2)) == [None, None]


def test_the_error_names_column_and_byte() -> None:
    batch = pa.RecordBatch.from_arrays([pa.array(["x"]), unchecked([BAD], pa.string())], ["a", "b"])
    (row,) = read_rows(batch, ["a", "b"])
    assert isinstance(row, RowRefused)
    assert row.message == "the column 'b' is not UTF-8: invalid start byte at byte 2"
