"""Parquet files that are nothing but a footer made to harm its reader, written in Thrift's compact protocol."""

from __future__ import annotations

import struct


def varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def number(step: int, value: int, kind: int = 6) -> bytes:
    """A field `step` ids after the last; kind 5 is i32, 6 i64."""
    return bytes([step << 4 | kind]) + varint(value << 1)


def text(step: int, value: bytes) -> bytes:
    return bytes([step << 4 | 8]) + varint(len(value)) + value


def structs(step: int, items: list[bytes]) -> bytes:
    return bytes([step << 4 | 9, 0xFC]) + varint(len(items)) + b"".join(items)


def group(children: int) -> bytes:
    return number(3, 0, 5) + text(1, b"g") + number(1, children, 5) + b"\0"


def leaf(name: bytes = b"x") -> bytes:
    return number(1, 6, 5) + number(2, 1, 5) + text(1, name) + b"\0"


def row_group(num_chunks: int, num_rows: int = 0) -> bytes:
    return structs(1, [number(2, 4) + b"\0"] * num_chunks) + number(1, 0) + number(1, num_rows) + b"\0"


def parquet(schema: list[bytes], row_groups: list[bytes], num_rows: int = 0, more: bytes = b"") -> bytes:
    footer = number(1, 2, 5) + structs(1, schema) + number(1, num_rows) + structs(1, row_groups) + more + b"\0"
    return b"PAR1" + footer + struct.pack("<I", len(footer)) + b"PAR1"


ONE = [group(1), leaf()]
FLAT_LIST = bytes([0x59, 0xF1]) + varint(3_000_000) + b"\1" * 3_000_000  # an unknown field, skipped item by item
HOSTILE = {
    "schema nested 200,000 deep": parquet([group(1)] * 200_000 + [leaf()], []),
    "900,000 columns": parquet([group(900_000)] + [leaf()] * 900_000, []),
    "5,000,000 column chunks": parquet(ONE, [row_group(10_000)] * 500),
    "a footer of 17 MB": parquet([*ONE, leaf(b"x" * (17 << 20))], []),
    "a long list that nobody wants": parquet(ONE, [], more=FLAT_LIST),
    "a list that claims 2^31 items": b"PAR1\x15\x04\x19\xfc\xff\xff\xff\xff\x07\0" + struct.pack("<I", 10) + b"PAR1",
    "lists nested 10,000 deep": parquet(ONE, [], more=b"\x59" + b"\x19" * 10_000),
    "a row count of 2^62": parquet(ONE, [], num_rows=2**62),
    "row groups that sum up to another count": parquet(ONE, [row_group(1, 5)], num_rows=6),
    "a column without metadata": parquet(ONE, [row_group(1, 5)], num_rows=5),
}
