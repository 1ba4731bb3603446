"""Reading a range of rows of one Parquet file: lazily, page checksums verified, a bounded piece in memory at a time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from db.errors import InvalidDataset
from db.footers import OpenFile, faults, open_parquet
from db.row_groups import RowGroup
from db.stores import Place

# Most bytes that a column of a batch should take once decoded. A single larger cell is read all the same.
BATCH_BYTES = 64 << 20


def read(
    file: str | Place,
    start: int,
    stop: int,
    columns: Sequence[str] | None = None,
    batch_rows: int = 256,
    *,
    version: str | None = None,
    constants: Mapping[str, pa.Scalar[Any]] | None = None,
) -> Iterator[pa.RecordBatch]:
    """Rows [start, stop) of a file in order, in batches of at most `batch_rows`; `columns` in the order given, or all.

    `constants` are columns beside the file's own, of one value each. Row groups outside the range are not touched;
    inside one, the rows before `start` are decoded and dropped. Exactly stop - start rows come out, or InvalidDataset
    is raised: `changed` when the file is not of `version`, or no longer has these rows or columns, `corrupt_data` when
    bytes are broken. The reason names the row group.
    """
    path = Path(file) if isinstance(file, str) else file
    fixed = constants or {}
    with open_parquet(path, version) as source:
        asked = [*source.schema.names, *fixed] if columns is None else list(columns)
        wanted = [name for name in asked if name not in fixed]
        _check_still_there(path, source, stop, wanted)
        first = 0
        for index, group in enumerate(source.row_groups):
            low, high = max(start - first, 0), min(stop - first, group.num_rows)
            if low < high:
                size = min(batch_rows, _bounded_rows(group, source.bytes, set(wanted)))
                for batch in _read_group(path, source.parquet, index, wanted, low, high, size):
                    yield batch if not fixed else _completed(batch, asked, fixed)
            first += group.num_rows


def _completed(batch: pa.RecordBatch, asked: list[str], fixed: Mapping[str, pa.Scalar[Any]]) -> pa.RecordBatch:
    columns = [
        pa.array([fixed[name].as_py()] * batch.num_rows, fixed[name].type) if name in fixed else batch.column(name)
        for name in asked
    ]
    fields = [pa.field(name, fixed[name].type) if name in fixed else batch.schema.field(name) for name in asked]
    return pa.RecordBatch.from_arrays(columns, schema=pa.schema(fields))


def _check_still_there(path: Place, source: OpenFile, stop: int, wanted: list[str]) -> None:
    if stop > source.num_rows:
        reason = f"has {source.num_rows:,} rows; rows up to {stop:,} were there when it was checked"
        raise InvalidDataset("changed", str(path), reason)
    for name in wanted:
        if name not in source.schema.names:
            raise InvalidDataset("changed", str(path), f"no longer has the column {name!r}", name)


def _read_group(
    path: Place, parquet: pq.ParquetFile, group: int, wanted: list[str], low: int, high: int, size: int
) -> Iterator[pa.RecordBatch]:
    """Rows [low, high) of a row group."""
    position = 0
    batches = _batches(parquet, group, wanted, size)
    while position < high:
        try:
            with faults("corrupt_data", path, f"row group {group} cannot be read"):
                batch = next(batches, None)
        except InvalidDataset as error:
            error.column = _broken_column(parquet, group, wanted, size)
            raise
        if batch is None:
            raise InvalidDataset("corrupt_data", str(path), f"row group {group} ends after {position:,} rows")
        if position + batch.num_rows > low:
            skip = max(low - position, 0)
            yield batch.slice(skip, min(high - position, batch.num_rows) - skip)
        position += batch.num_rows


def _batches(parquet: pq.ParquetFile, group: int, wanted: list[str], size: int) -> Iterator[pa.RecordBatch]:
    """One thread decodes: the cores belong to the engine. pyarrow gives the columns in the file's order."""
    for batch in parquet.iter_batches(size, row_groups=[group], columns=wanted, use_threads=False):
        yield batch.select(wanted)


def _broken_column(parquet: pq.ParquetFile, group: int, wanted: list[str], size: int) -> str | None:
    """The first column that cannot be read by itself: pyarrow's own message does not name it."""
    for name in wanted:
        try:
            for _ in _batches(parquet, group, [name], size):
                pass
        except (pa.ArrowException, OSError):
            return name
    return None


def _bounded_rows(group: RowGroup, file: BinaryIO, wanted: set[str]) -> int:
    """Rows per batch that keep a column's decoded piece near BATCH_BYTES.

    A column's average tells it for plain pages. A dictionary may be much larger decoded than encoded, each row a copy
    of a large value; no value is larger than the dictionary's page.
    """
    most = max(
        (
            max(chunk.num_bytes // max(group.num_rows, 1), chunk.dictionary_bytes(file))
            for chunk in group.chunks
            if chunk.path and chunk.path[0] in wanted
        ),
        default=1,
    )
    return max(BATCH_BYTES // max(most, 1), 1)
