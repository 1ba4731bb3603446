"""A reader of Thrift's compact protocol that takes out a few fields and skips the rest.

Parquet keeps its footers and page headers in it. pyarrow's own view of a footer's column chunks ends the process when a
hostile footer contradicts itself (seen with pyarrow 26: RowGroupMetaData.column), and its parsed footer takes hundreds
of times the bytes; here a bad byte is a ValueError, and little is built.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

# What to take out of a struct: field id -> None for a number or bytes, Fields for a struct; alike for a list of these.
Fields: TypeAlias = "Mapping[int, Fields | None]"
MAX_DEPTH = 32  # Parquet's own structs are nested less than 10 deep

BOOL_TRUE, BOOL_FALSE, BYTE, I16, I32, I64, DOUBLE, BINARY, LIST, SET, _, STRUCT = range(1, 13)


class Malformed(ValueError):
    """The bytes are not the compact protocol, or claim more than the reader takes."""


class CompactReader:
    """Reads `data` from its start. At most `max_items` list items are taken out in all; skipped ones cost no memory."""

    def __init__(self, data: bytes, max_items: int) -> None:
        self._data = data
        self._left = max_items
        self._position = 0

    def read(self, fields: Fields) -> dict[int, Any]:
        """The wanted fields of the struct that begins here: int, bytes, dict, or a list of one of these.

        Raises Malformed.
        """
        try:
            return self._struct(fields, 0)
        except IndexError:
            raise Malformed("the bytes end within a value") from None

    def _struct(self, fields: Fields, depth: int) -> dict[int, Any]:
        if depth > MAX_DEPTH:
            raise Malformed("values are nested too deeply")
        found: dict[int, Any] = {}
        number = 0
        while head := self._byte():
            number = number + (head >> 4) if head >> 4 else _signed(self._varint())
            if number in fields:
                found[number] = self._value(head & 0x0F, fields[number], depth)
            else:
                self._skip(head & 0x0F, depth)
        return found

    def _value(self, kind: int, fields: Fields | None, depth: int) -> Any:
        if fields is None and kind in (I16, I32, I64):
            return _signed(self._varint())
        if fields is None and kind == BINARY:
            size = self._varint()
            self._position += size
            return self._data[self._position - size : self._position]
        if fields is not None and kind == STRUCT:
            return self._struct(fields, depth + 1)
        if kind == LIST:
            size, item = self._list_head()
            self._left -= size
            if self._left < 0:
                raise Malformed("there are too many columns and row groups")
            return [self._value(item, fields, depth + 1) for _ in range(size)]
        raise Malformed(f"a field has the unexpected type {kind}")

    def _skip(self, kind: int, depth: int, in_list: bool = False) -> None:
        if kind in (I16, I32, I64):
            while self._byte() >= 0x80:
                pass
        elif kind == BINARY:
            size = self._varint()
            self._position += size
        elif kind == STRUCT:
            self._struct({}, depth + 1)
        elif kind in (LIST, SET):
            if depth > MAX_DEPTH:
                raise Malformed("values are nested too deeply")
            size, item = self._list_head()
            for _ in range(size):
                self._skip(item, depth + 1, in_list=True)
        elif kind in (BOOL_TRUE, BOOL_FALSE):
            self._position += in_list  # as a field, its type is its value
        elif kind in (BYTE, DOUBLE):
            self._position += 1 if kind == BYTE else 8
        else:
            raise Malformed(f"the type {kind} has no place in Parquet")

    def _byte(self) -> int:
        byte = self._data[self._position]
        self._position += 1
        return byte

    def _varint(self) -> int:
        value = 0
        for shift in range(0, 64, 7):
            byte = self._byte()
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
        raise Malformed("a number has more than 64 bits")

    def _list_head(self) -> tuple[int, int]:
        """Number of items and their type. Every item takes a byte at least."""
        head = self._byte()
        size = self._varint() if head >> 4 == 15 else head >> 4
        if size > len(self._data) - self._position:
            raise Malformed(f"a list claims {size:,} items")
        return size, head & 0x0F


def _signed(value: int) -> int:
    """Zigzag: 0, -1, 1, -2 …"""
    return (value >> 1) ^ -(value & 1)
