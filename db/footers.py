"""Opening a Parquet file that may be anything: a pipe, a link, noise, or a footer made to harm the reader.

Nothing here trusts the file. What pyarrow makes of it is believed only after its counts agree with each other.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from db.errors import InvalidDataset

# Parsed, a footer takes up to 250 times its bytes (measured: 3 MB of empty column chunks became 750 MB), so that a
# small file could take all memory. Honest footers have about 100 bytes per column and row group.
MAX_FOOTER_BYTES = 4 << 20
BUFFER_BYTES = 1 << 20


@contextmanager
def open_parquet(path: Path) -> Iterator[tuple[pq.ParquetFile, BinaryIO]]:
    """A Parquet file whose footer has been read, and the open file itself. Bytes are read on demand; pages are checked.

    Raises InvalidDataset: not_a_file, changed, invalid_parquet. Errors of the machine (OSError with errno) pass.
    """
    with _open_regular(path) as file:
        _check_footer_size(path, file)
        with faults("invalid_parquet", path, "is not a readable Parquet file"):
            parquet = pq.ParquetFile(
                file, pre_buffer=False, buffer_size=BUFFER_BYTES, page_checksum_verification=True
            )  # not memory-mapped: a file cut short while mapped kills the process
            _check_counts(path, parquet.metadata)
        yield parquet, file


@contextmanager
def faults(code: str, path: Path, what: str, row: int | None = None) -> Iterator[None]:
    """Everything that pyarrow raises over a file's bytes becomes InvalidDataset; errors of the machine pass."""
    try:
        yield
    except (pa.ArrowException, OSError, UnicodeDecodeError, OverflowError) as error:
        if getattr(error, "errno", None) is not None:
            raise
        raise InvalidDataset(code, str(path), f"{what}: {_first_line(error)}", row=row) from error


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:300]


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


def _check_footer_size(path: Path, file: BinaryIO) -> None:
    size = os.fstat(file.fileno()).st_size
    file.seek(max(0, size - 8))
    tail = file.read(8)
    claimed = int.from_bytes(tail[:4], "little")
    if tail[4:] == b"PAR1" and claimed > MAX_FOOTER_BYTES:
        reason = f"its footer claims {claimed:,} bytes; at most {MAX_FOOTER_BYTES:,} are read"
        raise InvalidDataset("invalid_parquet", str(path), f"{reason} (fewer columns or row groups make it smaller)")


def _check_counts(path: Path, metadata: pq.FileMetaData) -> None:
    rows = [metadata.row_group(i).num_rows for i in range(metadata.num_row_groups)]
    if min(rows, default=0) < 0 or sum(rows) != metadata.num_rows:
        reason = f"its footer counts {metadata.num_rows:,} rows and its row groups {sum(rows):,}"
        raise InvalidDataset("invalid_parquet", str(path), reason)
