"""Parquet datasets: one file, or the *.parquet files of one folder. Checked here from their footers alone.

Reading rows is db.parquet, publishing is db.publish, URIs and roots are db.uris.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
from pyarrow import types

from db import uris
from db.errors import InvalidDataset
from db.footers import open_parquet

NAMED = 20  # columns that an error message lists


@dataclass(frozen=True, slots=True)
class DataFile:
    path: Path
    num_rows: int


@dataclass(frozen=True, slots=True)
class Dataset:
    """Files in reading order, their common schema, and the sum of their rows."""

    files: tuple[DataFile, ...]
    schema: pa.Schema
    num_rows: int


def inspect(path: Path) -> Dataset:
    """Read the footers of a file, or of the *.parquet files of a folder in the order of their names.

    `path` comes from db.uris and holds no link. Names that start with `_` or `.` are skipped; a folder inside is
    refused, for its rows would be lost in silence. Raises InvalidDataset naming the file, and the column if one is
    at fault.
    """
    files: list[DataFile] = []
    first: pa.Schema | None = None
    for file in _members(path) if path.is_dir() else [_plain_name(path)]:
        num_rows, schema = _footer(file)
        if first is None:
            first = schema
        _check_same(first, files[0].path if files else file, schema, file)
        files.append(DataFile(file, num_rows))
    if first is None:
        raise InvalidDataset("empty_folder", str(path), "has no .parquet file")
    return Dataset(tuple(files), first, sum(file.num_rows for file in files))


def _members(folder: Path) -> list[Path]:
    found = []
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.startswith(("_", ".")):
                continue
            if entry.is_dir():
                reason = f"contains the folder {entry.name!r}; a dataset is the files of one folder"
                raise InvalidDataset("nested_folder", str(folder), reason)
            if entry.name.lower().endswith(".parquet"):
                found.append(_plain_name(folder / entry.name))
    return sorted(found)


def _plain_name(path: Path) -> Path:
    """The path becomes text in the database and is resolved again before it is read."""
    if reason := uris.fault(str(path)):
        raise InvalidDataset("file_name", ascii(str(path))[1:-1], f"its name {reason}")
    return path


def _footer(path: Path) -> tuple[int, pa.Schema]:
    with open_parquet(path) as source:
        for name, count in Counter(source.schema.names).items():
            if count > 1:
                raise InvalidDataset("duplicate_column", str(path), f"has {count} columns named {name!r}", name)
        return source.num_rows, source.schema


def _check_same(first: pa.Schema, first_path: Path, schema: pa.Schema, path: Path) -> None:
    """Names, order and types must agree; whether a column may hold nulls, and metadata, need not."""
    types_here = {field.name: field.type for field in schema}
    types_first = {field.name: field.type for field in first}
    for name in [*types_first, *types_here]:
        here, there = types_here.get(name), types_first.get(name)
        if here != there:
            reason = f"column {name!r} is {_show(here)} here and {_show(there)} in {first_path.name!r}"
            raise InvalidDataset("schema_mismatch", str(path), reason, name)
    for name, other in zip(schema.names, first.names, strict=True):
        if name != other:
            reason = f"column {name!r} stands where {first_path.name!r} has {other!r}"
            raise InvalidDataset("schema_mismatch", str(path), reason, name)


def _show(type_: pa.DataType | None) -> str:
    return "missing" if type_ is None else str(type_)[:200]


def is_text(type_: pa.DataType) -> bool:
    """string, large_string, string_view, or a dictionary of these."""
    if isinstance(type_, pa.DictionaryType):
        type_ = type_.value_type
    return types.is_string(type_) or types.is_large_string(type_) or types.is_string_view(type_)


def check_columns(dataset: Dataset, names: Iterable[str]) -> None:
    """Raises InvalidDataset (`no_column`) for the first name that is not a column."""
    for name in names:
        _type(dataset, name)


def check_text(dataset: Dataset, column: str) -> None:
    """Raises InvalidDataset (`no_column`, `wrong_type`) unless the column holds text."""
    type_ = _type(dataset, column)
    if not is_text(type_):
        raise _wrong_type(dataset, column, type_, "text must be a string column")


def check_messages(dataset: Dataset, column: str) -> None:
    """Raises InvalidDataset unless the column holds messages: list<struct<role, content, …>> of text, or JSON text."""
    type_ = _type(dataset, column)
    if not is_text(type_) and not _is_messages(type_):
        wanted = "messages must be a list of structs with the strings role and content, or a string column of JSON"
        raise _wrong_type(dataset, column, type_, wanted)


def _is_messages(type_: pa.DataType) -> bool:
    if not isinstance(type_, (pa.ListType, pa.LargeListType, pa.FixedSizeListType)):
        return False
    item = type_.value_type
    if not isinstance(item, pa.StructType):
        return False
    fields = {item.field(i).name: item.field(i).type for i in range(item.num_fields)}
    return all(name in fields and is_text(fields[name]) for name in ("role", "content"))


def _type(dataset: Dataset, column: str) -> pa.DataType:
    if column not in dataset.schema.names:
        names = ", ".join(repr(name) for name in dataset.schema.names[:NAMED]) or "none"
        more = ", …" if len(dataset.schema.names) > NAMED else ""
        reason = f"has no column {column!r}; its columns are: {names}{more}"
        raise InvalidDataset("no_column", str(dataset.files[0].path), reason, column)
    type_: pa.DataType = dataset.schema.field(column).type
    return type_


def _wrong_type(dataset: Dataset, column: str, type_: pa.DataType, wanted: str) -> InvalidDataset:
    reason = f"column {column!r} is {_show(type_)}; {wanted}"
    return InvalidDataset("wrong_type", str(dataset.files[0].path), reason, column)
