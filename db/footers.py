"""Opening a Parquet file that may be anything: a pipe, a link, noise, or a footer made to harm the reader."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from db.errors import InvalidDataset
from db.row_groups import RowGroup, read_row_groups
from db.thrift import Malformed

BUFFER_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class OpenFile:
    """A Parquet file whose footer is known to be harmless. `bytes` is the file itself."""

    parquet: pq.ParquetFile
    schema: pa.Schema
    row_groups: tuple[RowGroup, ...]
    bytes: BinaryIO

    @property
    def num_rows(self) -> int:
        return sum(group.num_rows for group in self.row_groups)


@contextmanager
def open_parquet(path: Path) -> Iterator[OpenFile]:
    """A Parquet file whose footer has been read; its pages are read on demand and their checksums verified.

    Raises InvalidDataset: not_a_file, changed, invalid_parquet. Errors of the machine (OSError with errno) pass.
    """
    with _open_regular(path) as file:
        try:
            row_groups = read_row_groups(file, os.fstat(file.fileno()).st_size)
        except Malformed as error:
            raise InvalidDataset("invalid_parquet", str(path), f"its footer cannot be used: {error}") from error
        with faults("invalid_parquet", path, "is not a readable Parquet file"):
            # Not memory-mapped: a file that is cut short while it is mapped ends the process.
            parquet = pq.ParquetFile(file, pre_buffer=False, buffer_size=BUFFER_BYTES, page_checksum_verification=True)
            schema = parquet.schema_arrow
            assert len(schema.names) == len(schema)  # decodes the names
            counts = parquet.metadata.num_row_groups, parquet.metadata.num_rows
        opened = OpenFile(parquet, schema, row_groups, file)
        if counts != (len(row_groups), opened.num_rows):
            raise InvalidDataset("invalid_parquet", str(path), "its footer can be read in two ways")
        yield opened


@contextmanager
def faults(code: str, path: Path, what: str) -> Iterator[None]:
    """Everything that pyarrow raises over a file's bytes becomes InvalidDataset; errors of the machine pass."""
    try:
        yield
    except (pa.ArrowException, OSError, UnicodeDecodeError, OverflowError) as error:
        if getattr(error, "errno", None) is not None:
            raise
        line = (str(error).strip().splitlines() or [type(error).__name__])[0][:300]
        shown = "".join(char if char.isprintable() else "�" for char in line)
        raise InvalidDataset(code, str(path), f"{what}: {shown}") from error


def _open_regular(path: Path) -> BinaryIO:
    """Open without following a link and without waiting for the other end of a pipe."""
    if os.path.realpath(path) != str(path):
        raise InvalidDataset("changed", str(path), "a part of the path is a symbolic link")
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise InvalidDataset("not_a_file", str(path), f"cannot be opened: {error.strerror}") from error
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise InvalidDataset("not_a_file", str(path), "is not a regular file")
    return os.fdopen(fd, "rb")
