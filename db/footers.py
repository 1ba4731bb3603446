"""Opening a Parquet file that may be anything: a pipe, a link, noise, or a footer made to harm the reader."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from db.errors import InvalidDataset
from db.row_groups import RowGroup, read_row_groups
from db.stores import Place, store_of
from db.thrift import Malformed

BUFFER_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class OpenFile:
    """A Parquet file whose footer is known to be harmless. `bytes` is the file itself, of this `version`."""

    parquet: pq.ParquetFile
    schema: pa.Schema
    row_groups: tuple[RowGroup, ...]
    bytes: BinaryIO
    version: str

    @property
    def num_rows(self) -> int:
        return sum(group.num_rows for group in self.row_groups)


@contextmanager
def open_parquet(path: Place, version: str | None = None) -> Iterator[OpenFile]:
    """A Parquet file whose footer has been read; its pages are read on demand and their checksums verified.

    `version`: the one that the file must have, if any. Raises InvalidDataset: not_a_file, changed, invalid_parquet.
    Errors of the machine and of the store (OSError with errno) pass.
    """
    file, found = store_of(path).open(path)
    with file:
        if version is not None and found != version:
            raise InvalidDataset("changed", str(path), "is not the file that was there when the job was submitted")
        try:
            row_groups = read_row_groups(file, file.seek(0, os.SEEK_END))
        except Malformed as error:
            raise InvalidDataset("invalid_parquet", str(path), f"its footer cannot be used: {error}") from error
        with faults("invalid_parquet", path, "is not a readable Parquet file"):
            file.seek(0)
            # Not memory-mapped: a file that is cut short while it is mapped ends the process.
            parquet = pq.ParquetFile(file, pre_buffer=False, buffer_size=BUFFER_BYTES, page_checksum_verification=True)
            schema = parquet.schema_arrow
            assert len(schema.names) == len(schema)  # decodes the names
            counts = parquet.metadata.num_row_groups, parquet.metadata.num_rows
        opened = OpenFile(parquet, schema, row_groups, file, found)
        if counts != (len(row_groups), opened.num_rows):
            raise InvalidDataset("invalid_parquet", str(path), "its footer can be read in two ways")
        yield opened


@contextmanager
def faults(code: str, path: Place, what: str) -> Iterator[None]:
    """Everything that pyarrow raises over a file's bytes becomes InvalidDataset; errors of the machine pass."""
    try:
        yield
    except (pa.ArrowException, OSError, UnicodeDecodeError, OverflowError) as error:
        if getattr(error, "errno", None) is not None:
            raise
        line = (str(error).strip().splitlines() or [type(error).__name__])[0][:300]
        shown = "".join(char if char.isprintable() else "�" for char in line)
        raise InvalidDataset(code, str(path), f"{what}: {shown}") from error
