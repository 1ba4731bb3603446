"""Reading a range of rows of one Parquet file: lazily, page checksums verified, a bounded piece in memory at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from db.errors import InvalidDataset
from db.footers import faults, open_parquet

# Most bytes that a column of a batch should take once decoded. A single larger cell is read all the same.
BATCH_BYTES = 64 << 20
DICTIONARY_PAGE = 2  # PageType of the Parquet format


def read(
    file: str | Path, start: int, stop: int, columns: Sequence[str] | None = None, batch_rows: int = 256
) -> Iterator[pa.RecordBatch]:
    """Rows [start, stop) of a file in order, in batches of at most `batch_rows`; `columns` in the order given, or all.

    Row groups outside the range are not touched; inside one, the rows before `start` are decoded and dropped. Exactly
    stop - start rows come out, or InvalidDataset is raised: `changed` when the file no longer has these rows or
    columns, `corrupt_data` when bytes are broken. The reason names the row group.
    """
    path = Path(file)
    with open_parquet(path) as (parquet, source):
        with faults("invalid_parquet", path, "its schema cannot be read"):
            names = parquet.schema_arrow.names
        wanted = list(names if columns is None else columns)
        _check_still_there(path, parquet.metadata.num_rows, stop, wanted, names)
        first = 0
        for group in range(parquet.metadata.num_row_groups):
            rows = parquet.metadata.row_group(group).num_rows
            low, high = max(start - first, 0), min(stop - first, rows)
            if low < high:
                size = min(batch_rows, _bounded_rows(parquet.metadata.row_group(group), source, set(wanted)))
                yield from _read_group(path, parquet, group, wanted, low, high, size)
            first += rows


def _check_still_there(path: Path, num_rows: int, stop: int, wanted: list[str], names: list[str]) -> None:
    if stop > num_rows:
        raise InvalidDataset(
            "changed", str(path), f"has {num_rows:,} rows; rows up to {stop:,} were there when checked"
        )
    for name in wanted:
        if name not in names:
            raise InvalidDataset("changed", str(path), f"no longer has the column {name!r}", name)


def _read_group(
    path: Path, parquet: pq.ParquetFile, group: int, wanted: list[str], low: int, high: int, size: int
) -> Iterator[pa.RecordBatch]:
    """Rows [low, high) of a row group. One thread decodes: the cores belong to the engine."""
    position = 0
    what = f"row group {group} cannot be read"
    with faults("corrupt_data", path, what):
        batches = parquet.iter_batches(size, row_groups=[group], columns=wanted, use_threads=False)
    while position < high:
        with faults("corrupt_data", path, what):
            batch = next(batches, None)
            if batch is None:
                raise InvalidDataset("corrupt_data", str(path), f"row group {group} ends after {position:,} rows")
            chosen = batch.select(wanted)
        if position + batch.num_rows > low:
            skip = max(low - position, 0)
            yield chosen.slice(skip, min(high - position, batch.num_rows) - skip)
        position += batch.num_rows


def _bounded_rows(group: pq.RowGroupMetaData, source: BinaryIO, wanted: set[str]) -> int:
    """Rows per batch that keep a column's decoded piece near BATCH_BYTES.

    A column's average tells it for plain pages. A dictionary may be much larger decoded than encoded, each row a copy
    of a large value; no value is larger than the dictionary's page.
    """
    rows = BATCH_BYTES
    for i in range(group.num_columns):
        column = group.column(i)
        if wanted.isdisjoint(_prefixes(column.path_in_schema)):
            continue
        average = max(column.total_uncompressed_size, 0) // max(group.num_rows, 1)
        rows = min(rows, BATCH_BYTES // max(average, _dictionary_bytes(column, source), 1))
    return max(rows, 1)


def _prefixes(path: str) -> Iterator[str]:
    """`a`, `a.b`, `a.b.c`: a dot may part a nested field or be part of a name."""
    parts = path.split(".")
    return (".".join(parts[: n + 1]) for n in range(len(parts)))


def _dictionary_bytes(column: pq.ColumnChunkMetaData, source: BinaryIO) -> int:
    """Size of the column's dictionary page once uncompressed, from the page's header; 0 without one.

    A page header (Thrift, compact protocol) begins with two i32 fields: the type, and the uncompressed size. Some
    writers put the dictionary where the footer announces the first data page.
    """
    if column.physical_type not in ("BYTE_ARRAY", "FIXED_LEN_BYTE_ARRAY"):
        return 0
    source.seek(max(0, column.dictionary_page_offset or column.data_page_offset))
    header = source.read(12)
    if header[:1] != b"\x15" or len(header) < 12:
        return 0  # not a page: the reader will say so
    kind, position = _varint(header, 1)
    if kind != DICTIONARY_PAGE << 1 or header[position] != 0x15:
        return 0
    return _varint(header, position + 1)[0] >> 1


def _varint(data: bytes, position: int) -> tuple[int, int]:
    """An unsigned LEB128 number of at most 5 bytes and the position after it; zigzag is the caller's."""
    value = 0
    for shift in range(0, 35, 7):
        byte = data[position]
        value |= (byte & 0x7F) << shift
        position += 1
        if byte < 0x80:
            break
    return value, position
