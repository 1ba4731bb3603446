"""Row ranges: exactly the rows asked for, whatever the row groups, in bounded pieces."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from db import parquet
from db.errors import InvalidDataset
from db.row_groups import Chunk
from db.thrift import CompactReader, Malformed


def write(path: Path, num_rows: int = 100, group: int = 7) -> Path:
    table = pa.table({"id": range(num_rows), "text": [f"t{i}" for i in range(num_rows)], "z": [None] * num_rows})
    pq.write_table(table, path, row_group_size=group)
    return path


def ids(batches: Iterator[pa.RecordBatch]) -> list[int]:
    return [value for batch in batches for value in batch.column("id").to_pylist()]


def test_any_range_gives_exactly_its_rows(tmp_path_factory: pytest.TempPathFactory) -> None:
    path = write(tmp_path_factory.mktemp("range") / "a.parquet")

    @settings(max_examples=60, deadline=None)
    @given(st.integers(0, 100), st.integers(0, 100), st.integers(1, 20))
    def check(one: int, other: int, batch_rows: int) -> None:
        start, stop = sorted((one, other))
        batches = list(parquet.read(path, start, stop, ["id"], batch_rows))
        assert ids(iter(batches)) == list(range(start, stop))
        assert all(0 < batch.num_rows <= batch_rows for batch in batches)

    check()


def test_columns_come_in_the_order_asked_for(tmp_path: Path) -> None:
    path = write(tmp_path / "a.parquet", num_rows=3)
    (batch,) = parquet.read(path, 1, 3, ["text", "id"])
    assert batch.schema.names == ["text", "id"]
    assert batch.to_pylist() == [{"text": "t1", "id": 1}, {"text": "t2", "id": 2}]
    (batch,) = parquet.read(path, 0, 3)
    assert batch.schema.names == ["id", "text", "z"]


def test_no_columns_still_count_rows(tmp_path: Path) -> None:
    batches = list(parquet.read(write(tmp_path / "a.parquet"), 5, 20, []))
    assert [(batch.num_columns, batch.num_rows) for batch in batches] == [(0, 2), (0, 7), (0, 6)]


def test_a_name_is_never_taken_for_a_path_into_a_struct(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"a.b": ["dotted"], "a": pa.array([{"b": "nested"}]), "": ["empty"]}), path)
    for column, value in (("a.b", "dotted"), ("a", {"b": "nested"}), ("", "empty")):
        (batch,) = parquet.read(path, 0, 1, [column])
        assert batch.to_pylist() == [{column: value}]


def test_row_groups_outside_the_range_are_not_touched(tmp_path: Path) -> None:
    path = write(tmp_path / "a.parquet", num_rows=20, group=10)
    data = bytearray(path.read_bytes())
    first_page = pq.ParquetFile(path).metadata.row_group(0).column(0).dictionary_page_offset
    data[first_page : first_page + 30] = bytes(30)
    path.write_bytes(data)
    assert ids(parquet.read(path, 10, 20, ["id"])) == list(range(10, 20))
    with pytest.raises(InvalidDataset, match="row group 0 cannot be read") as caught:
        list(parquet.read(path, 9, 20, ["text", "id"]))
    assert (caught.value.code, caught.value.column) == ("corrupt_data", "id")


def test_a_file_that_shrank_or_lost_a_column_is_noticed(tmp_path: Path) -> None:
    path = write(tmp_path / "a.parquet", num_rows=10)
    with pytest.raises(InvalidDataset, match="has 10 rows; rows up to 11 were there") as caught:
        list(parquet.read(path, 0, 11))
    assert caught.value.code == "changed"
    with pytest.raises(InvalidDataset, match="no longer has the column 'gone'") as caught:
        list(parquet.read(path, 0, 10, ["gone"]))
    assert (caught.value.code, caught.value.column) == ("changed", "gone")


def test_links_pipes_devices_folders_and_nothing_are_refused_at_once(tmp_path: Path) -> None:
    write(tmp_path / "a.parquet")
    (tmp_path / "link.parquet").symlink_to("a.parquet")
    (tmp_path / "real").mkdir()
    write(tmp_path / "real" / "b.parquet")
    (tmp_path / "folder").symlink_to("real")
    os.mkfifo(tmp_path / "pipe.parquet")
    expected = {"link.parquet": "changed", "folder/b.parquet": "changed", "pipe.parquet": "not_a_file"}
    expected |= {"real": "not_a_file", "nothing.parquet": "not_a_file"}
    for name, code in expected.items():
        with pytest.raises(InvalidDataset) as caught:
            list(parquet.read(tmp_path / name, 0, 1))
        assert caught.value.code == code, name


def test_a_generator_that_is_dropped_closes_the_file(tmp_path: Path) -> None:
    batches = parquet.read(write(tmp_path / "a.parquet"), 0, 100)
    next(batches)
    batches.close()  # an open file would be a ResourceWarning, and so an error


# -- memory -----------------------------------------------------------------------------------------------------------

PEAK = """
    import resource, sys
    from db import parquet
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    rows = 0
    for batch in parquet.read(sys.argv[1], 0, int(sys.argv[2]), ["text"]):
        rows += batch.num_rows
        assert batch.nbytes <= 80 << 20, batch.nbytes
        assert batch.num_rows <= 256
    print(rows, (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)
"""


def peak(path: Path, num_rows: int) -> tuple[int, int]:
    """Rows read, and the growth of the peak resident memory in MiB."""
    command = [sys.executable, "-W", "error", "-c", textwrap.dedent(PEAK), str(path), str(num_rows)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert (done.stderr, done.returncode) == ("", 0)
    rows, grown = done.stdout.split()
    return int(rows), int(grown)


def test_a_dictionary_bomb_is_read_in_bounded_pieces(tmp_path: Path) -> None:
    """A value of 8 MB and 1,000 rows that refer to it: some kilobytes that would be 8 GB."""
    path = tmp_path / "bomb.parquet"
    column = pa.DictionaryArray.from_arrays(pa.array([0] * 1000, pa.int32()), pa.array(["x" * (8 << 20)]))
    schema = pa.schema({"text": pa.string()})  # the reader is not told that it is a dictionary
    with pq.ParquetWriter(path, pa.schema({"text": column.type}), compression="zstd", store_schema=False) as writer:
        writer.write_table(pa.table({"text": column}))
    assert path.stat().st_size < 100_000
    assert pq.read_schema(path).equals(schema)
    rows, grown = peak(path, 1000)
    assert rows == 1000
    assert grown < 300


def test_a_large_row_group_is_read_in_bounded_pieces(tmp_path: Path) -> None:
    path = tmp_path / "one_group.parquet"
    texts = pa.array([f"{i:08d} " * 25 for i in range(1000)])
    table = pa.table({"text": pa.chunked_array([texts] * 1000)})
    pq.write_table(table, path, row_group_size=table.num_rows, compression="none", use_dictionary=False)
    assert pq.ParquetFile(path).num_row_groups == 1
    rows, grown = peak(path, table.num_rows)
    assert rows == 1_000_000
    assert grown < 150  # of 225 MB


@pytest.mark.parametrize("place", [0, 2**62, 2**63 - 1])
def test_what_is_no_page_header_is_no_dictionary(tmp_path: Path, place: int) -> None:
    """Whatever lies where the footer announces a page, or nothing: reading the rows says what is wrong."""
    (tmp_path / "x").write_bytes(b"\x18\x03abc\0")  # a string where a type belongs
    with (tmp_path / "x").open("rb") as file:
        assert Chunk(("text",), 1, place, True).dictionary_bytes(file) == 0


# -- the Thrift reader ------------------------------------------------------------------------------------------------


@given(st.binary(max_size=200))
@settings(deadline=None)
def test_any_bytes_are_a_struct_or_malformed(data: bytes) -> None:
    try:
        found = CompactReader(data, 100).read({1: None, 2: {1: None}, 3: {3: {1: {}}}})
    except Malformed:
        return
    assert set(found) <= {1, 2, 3}


def test_long_field_ids_negative_numbers_and_skipped_values() -> None:
    parts = [
        b"\x15\x03",  # 1: i32 -2
        b"\x11",  # 2: true, which has no byte of its own
        b"\x13\x07",  # 3: a byte
        b"\x17" + bytes(8),  # 4: a double
        b"\x1a\x21\x01\x02",  # 5: a set of two booleans, which have one each
        b"\x18\x03abc",  # 6: a string
        b"\x05\x80\x01\x01",  # 64, its id written out: i32 -1
        b"\x68\x02de",  # 70: a string
        b"\0",
    ]
    found = CompactReader(b"".join(parts), 0).read({1: None, 64: None, 70: None})
    assert found == {1: -2, 64: -1, 70: b"de"}
