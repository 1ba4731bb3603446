"""What a Parquet footer says about where its rows lie, taken out without trust and without pyarrow."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, BinaryIO, TypeVar

from db.thrift import CompactReader, Fields, Malformed

T = TypeVar("T")

# pyarrow takes about 750 bytes of memory for a column chunk and 1,500 for a column (measured), which a footer can claim
# in 3 and 7 bytes each. An honest column chunk has about 100 bytes.
MAX_FOOTER_BYTES = 16 << 20
MAX_ITEMS = 500_000

# Field ids of parquet.thrift.
SCHEMA, NUM_ROWS, ROW_GROUPS = 2, 3, 4  # of FileMetaData
CHUNKS, GROUP_ROWS = 1, 3  # of RowGroup
CHUNK = 3  # of ColumnChunk: its ColumnMetaData
TYPE, PATH, BYTES, FIRST_PAGE, DICTIONARY = 1, 3, 6, 9, 11  # of ColumnMetaData
WANTED_CHUNK: Fields = {CHUNK: dict.fromkeys((TYPE, PATH, BYTES, FIRST_PAGE, DICTIONARY))}
WANTED: Fields = {SCHEMA: {}, NUM_ROWS: None, ROW_GROUPS: {CHUNKS: WANTED_CHUNK, GROUP_ROWS: None}}
BYTE_ARRAYS = (6, 7)  # physical types whose values may have any size

PAGE_TYPE, PAGE_BYTES = 1, 2  # of PageHeader
DICTIONARY_PAGE = 2  # of PageType
HEADER_BYTES = 4096  # statistics make a header long; the two fields come first


@dataclass(frozen=True, slots=True)
class Chunk:
    """A column's part of a row group: size once decompressed, and where its first page lies, as the footer claims."""

    path: tuple[str, ...]
    num_bytes: int
    first_page: int
    of_byte_arrays: bool

    def dictionary_bytes(self, file: BinaryIO) -> int:
        """Size of the dictionary page once decompressed, from the page's own header; 0 without a dictionary.

        Some writers put the dictionary where the footer announces the first data page.
        """
        if not self.of_byte_arrays or self.first_page >= file.seek(0, os.SEEK_END):
            return 0  # no disk knows places like the 2^62 that a footer may claim
        file.seek(self.first_page)
        try:
            header = CompactReader(file.read(HEADER_BYTES), 0).read({PAGE_TYPE: None, PAGE_BYTES: None})
            return max(_int(header, PAGE_BYTES), 0) if _int(header, PAGE_TYPE) == DICTIONARY_PAGE else 0
        except Malformed:
            return 0  # not a page: reading it will say so


@dataclass(frozen=True, slots=True)
class RowGroup:
    num_rows: int
    chunks: tuple[Chunk, ...]


def read_row_groups(file: BinaryIO, size: int) -> tuple[RowGroup, ...]:
    """The row groups of a Parquet file of `size` bytes. Raises Malformed; a file that is no Parquet at all has none."""
    file.seek(max(0, size - 8))
    tail = file.read(8)
    num_bytes = int.from_bytes(tail[:4], "little")
    if tail[4:] != b"PAR1" or num_bytes > size - 8:
        return ()  # pyarrow knows best what is wrong with it, and allocates nothing
    if num_bytes > MAX_FOOTER_BYTES:
        raise Malformed(f"it has {num_bytes:,} bytes; fewer columns or row groups bring it to {MAX_FOOTER_BYTES:,}")
    file.seek(size - 8 - num_bytes)
    return _parse(file.read(num_bytes))


# A worker reads many shards of one file, and a large footer takes seconds.
@lru_cache(maxsize=8)
def _parse(footer: bytes) -> tuple[RowGroup, ...]:
    found = CompactReader(footer, MAX_ITEMS).read(WANTED)
    groups = tuple(_row_group(group) for group in _list(found, ROW_GROUPS, dict))
    rows = [group.num_rows for group in groups]
    if min(rows, default=0) < 0 or sum(rows) != _int(found, NUM_ROWS):
        raise Malformed(f"it counts {_int(found, NUM_ROWS):,} rows, and its row groups {sum(rows):,}")
    return groups


def _row_group(group: dict[int, Any]) -> RowGroup:
    chunks = (chunk.get(CHUNK) for chunk in _list(group, CHUNKS, dict))
    return RowGroup(_int(group, GROUP_ROWS), tuple(_chunk(chunk) for chunk in chunks if isinstance(chunk, dict)))


def _chunk(chunk: dict[int, Any]) -> Chunk:
    path = tuple(part.decode("utf-8", "replace") for part in _list(chunk, PATH, bytes))
    # A dictionary at 0, where the magic lies, means none.
    first_page = max(_int(chunk, DICTIONARY) or _int(chunk, FIRST_PAGE), 0)
    return Chunk(path, max(_int(chunk, BYTES), 0), first_page, chunk.get(TYPE) in BYTE_ARRAYS)


def _int(found: dict[int, Any], field: int) -> int:
    value = found.get(field, 0)
    if not isinstance(value, int):
        raise Malformed(f"field {field} is not a number")
    return value


def _list(found: dict[int, Any], field: int, of: type[T]) -> list[T]:
    value = found.get(field, [])
    if not isinstance(value, list) or any(not isinstance(item, of) for item in value):
        raise Malformed(f"field {field} is not a list of {of.__name__}")
    return value
