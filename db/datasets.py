"""Parquet datasets: one file, the *.parquet files of a folder (its folders key=value included), or those of a pattern.

Checked here from their footers alone. Reading rows is db.parquet, publishing is db.publish, URIs and roots are db.uris.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import pyarrow as pa
from pyarrow import types

from db import s3_uris, uris
from db.errors import InvalidDataset
from db.footers import open_parquet
from db.partitions import Partitions
from db.stores import Place, S3Path, store_of
from db.stores.places import relative

NO_PARTITIONS = Partitions()
NAMED = 20  # columns that an error message lists
FOOTERS_AT_ONCE = 16  # of an object store, whose every answer takes a while


@dataclass(frozen=True, slots=True)
class DataFile:
    """`version` says which bytes: another one of the same name has another version."""

    path: Place
    num_rows: int
    version: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class Dataset:
    """Files in reading order, their common schema with the partitions' keys behind, and the sum of their rows."""

    files: tuple[DataFile, ...]
    schema: pa.Schema
    num_rows: int
    partitions: Partitions = NO_PARTITIONS

    @property
    def version(self) -> str:
        """A word that changes with any file: its name, bytes, or time of last change."""
        digest = hashlib.sha256()
        for file in self.files:
            digest.update(f"{file.path}\0{file.version}\0".encode())
        return digest.hexdigest()


def inspect(place: Place) -> Dataset:
    """Read the footers of a file, or of the *.parquet files below a folder in the order of their names.

    `place` comes from db.uris and holds no link. Names that start with `_` or `.` are skipped; in a folder that is not
    named key=value no file may lie, for its rows would be lost in silence. Raises InvalidDataset naming the file, and
    the column if one is at fault.
    """
    base, found = _members(place)
    partitions = Partitions() if base is None else Partitions.found(base, found)
    files: list[DataFile] = []
    first: pa.Schema | None = None
    for file, schema in _footers(found):
        if first is None:
            first = schema
            partitions.check(schema, file.path)
        _check_same(first, files[0].path if files else file.path, schema, file.path)
        files.append(file)
    if first is None:
        raise InvalidDataset("empty_folder", str(place), "has no .parquet file")
    for key in partitions.fields:
        first = first.append(key)
    return Dataset(tuple(files), first, sum(file.num_rows for file in files), partitions)


def base_of(place: Place) -> Place:
    """The folder that a dataset's files lie below; the file itself where it is one."""
    if uris.ANY not in str(place):
        return place
    while uris.ANY in str(place):
        place = place.parent
    return place


def _members(place: Place) -> tuple[Place | None, list[Place]]:
    """The files of a dataset in order, and the folder that they lie below unless a single file is named."""
    base = base_of(place)
    if base != place:
        return base, sorted(_matching(base, relative(place, base)), key=lambda file: relative(file, base))
    entry = store_of(place).look(place)
    if entry is not None and not entry.is_folder:
        return None, [_plain_name(place)]
    return place, sorted(_below(place), key=lambda file: relative(file, place))


def _below(folder: Place) -> Iterator[Place]:
    return _matching(folder, ())


def _matching(base: Place, pattern: Sequence[str]) -> Iterator[Place]:
    """The Parquet files below `base` whose first names fit the pattern's. What fits may be a folder of such files."""
    fits = [re.compile(".*".join(map(re.escape, name.split(uris.ANY))), re.DOTALL) for name in pattern]
    for entry in store_of(base).walk(base, pattern[0].partition(uris.ANY)[0] if pattern else ""):
        names = relative(entry.place, base)
        hidden = any(
            name.startswith(("_", ".")) and not (at < len(pattern) and pattern[at].startswith(name[0]))
            for at, name in enumerate(names)
        )
        if hidden or len(names) < len(fits):
            continue
        if not all(fit.fullmatch(name) for fit, name in zip(fits, names, strict=False)):
            continue
        if entry.is_folder or _is_parquet(names[-1]):
            folders = names if entry.is_folder else names[:-1]
            if wrong := [name for name in folders[len(fits) :] if "=" not in name or entry.is_folder]:
                what = "the link to a folder" if entry.is_folder else "the folder"
                reason = f"contains {what} {wrong[0]!r}; inner folders of a dataset are named key=value"
                raise InvalidDataset("nested_folder", str(base), reason)
            yield _plain_name(entry.place)


def _is_parquet(name: str) -> bool:
    return name.lower().endswith(".parquet")


def _plain_name(place: Place) -> Place:
    """The path becomes text in the database and is resolved again before it is read."""
    reason = s3_uris.split(str(place))[0] if isinstance(place, S3Path) else None
    if reason := reason or uris.fault(str(place).removeprefix("s3:/")):
        raise InvalidDataset("file_name", ascii(str(place))[1:-1], f"its name {reason}")
    return place


def _footers(places: Sequence[Place]) -> Iterator[tuple[DataFile, pa.Schema]]:
    """In order; those of a bucket several at a time."""
    if len(places) < 2 or not isinstance(places[0], S3Path):
        yield from map(_footer, places)
        return
    with ThreadPoolExecutor(FOOTERS_AT_ONCE) as pool:
        for start in range(0, len(places), 8 * FOOTERS_AT_ONCE):  # so that a broken file is not found behind them all
            yield from pool.map(_footer, places[start : start + 8 * FOOTERS_AT_ONCE])


def _footer(path: Place) -> tuple[DataFile, pa.Schema]:
    with open_parquet(path) as source:
        for name, count in Counter(source.schema.names).items():
            if count > 1:
                raise InvalidDataset("duplicate_column", str(path), f"has {count} columns named {name!r}", name)
        return DataFile(path, source.num_rows, source.version), source.schema


def _check_same(first: pa.Schema, first_path: Place, schema: pa.Schema, path: Place) -> None:
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
