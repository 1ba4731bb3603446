"""Cells: Arrow columns as Python values, row by row, with broken text kept to the row it is in.

Parquet does not check that text is UTF-8, and Arrow raises for the whole batch when one cell is not. Then text is cast
to binary, which copies nothing, and decoded cell by cell.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa

from worker.recipes.recipe import Row, RowRefused


def read_rows(batch: pa.RecordBatch, columns: Sequence[str]) -> Iterator[Row | RowRefused]:
    """The rows of a batch as mappings of `columns`; RowRefused stands for a row with text that is not UTF-8."""
    try:
        values = [batch.column(name).to_pylist() for name in columns]
    except UnicodeDecodeError:
        yield from _read_carefully(batch, columns)
    else:
        for row in zip(*values, strict=True) if columns else [()] * batch.num_rows:
            yield dict(zip(columns, row, strict=True))


def _read_carefully(batch: pa.RecordBatch, columns: Sequence[str]) -> Iterator[Row | RowRefused]:
    """Cell by cell, so that broken text is found where it is."""
    values = [_as_bytes(batch.column(name)) for name in columns]
    for index in range(batch.num_rows):
        row: dict[str, object] = {}
        try:
            for name, column in zip(columns, values, strict=True):
                row[name] = _decoded(column[index].as_py())
        except UnicodeDecodeError as error:
            yield RowRefused("invalid_utf8", f"the column {name!r} is not UTF-8: {error.reason} at byte {error.start}")
        else:
            yield row


def _as_bytes(array: pa.Array[Any]) -> pa.Array[Any]:
    if isinstance(array, pa.DictionaryArray):
        array = array.dictionary_decode()
    target = _byte_type(array.type)
    return array if target == array.type else array.cast(target)


def _byte_type(kind: pa.DataType) -> pa.DataType:
    """The type with every text in it as bytes of the same layout."""
    if pa.types.is_string(kind):
        return pa.binary()
    if pa.types.is_large_string(kind):
        return pa.large_binary()
    if pa.types.is_string_view(kind):
        return pa.binary_view()
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_byte_type(field.type)) for field in kind.fields])
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_byte_type(kind.value_type)))
    if pa.types.is_large_list(kind):
        return pa.large_list(kind.value_field.with_type(_byte_type(kind.value_type)))
    return kind


def _decoded(value: object) -> object:
    if isinstance(value, bytes):
        return value.decode("utf-8")
    if isinstance(value, list):
        return [_decoded(item) for item in value]
    if isinstance(value, dict):
        return {key: _decoded(item) for key, item in value.items()}
    return value
