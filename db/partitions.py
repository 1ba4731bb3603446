"""Hive partitions: folders named key=value, whose keys are columns of every row below them.

    day=2026-11-01/part-0.parquet

A key's type is found as Arrow finds it, from its values over all files: int32 if each is one, text otherwise. It is
found once, at the split of a job, and kept with it, so that no worker can find another one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

import pyarrow as pa

from db.errors import InvalidDataset
from db.stores import Place
from db.stores.places import relative

NULL = "__HIVE_DEFAULT_PARTITION__"
TYPES: dict[str, pa.DataType] = {"int32": pa.int32(), "string": pa.string()}
INT32 = range(-(1 << 31), 1 << 31)


@dataclass(frozen=True, slots=True)
class Partitions:
    """The keys of a dataset in the order of its folders, with their types' names."""

    keys: tuple[tuple[str, str], ...] = ()

    @classmethod
    def found(cls, base: Place, files: Sequence[Place]) -> Partitions:
        """Those of the files below `base`. Raises InvalidDataset: partition_mismatch, file_name."""
        first: tuple[str, ...] | None = None
        texts: dict[str, list[str | None]] = {}
        for file in files:
            pairs = _pairs(base, file)
            names = tuple(name for name, _ in pairs)
            first = names if first is None else first
            if names != first:
                reason = f"lies under the keys {_shown(names)}, and {files[0]} under {_shown(first or ())}"
                raise InvalidDataset("partition_mismatch", str(file), reason)
            if len(set(names)) != len(names):
                raise InvalidDataset("partition_mismatch", str(file), f"lies under the keys {_shown(names)}")
            for name, text in pairs:
                texts.setdefault(name, []).append(text)
        return cls(tuple((name, _type_of(values)) for name, values in texts.items()))

    @classmethod
    def of(cls, prepared: Mapping[str, Any]) -> Partitions:
        """As a job keeps them (`as_json`)."""
        return cls(tuple((str(name), str(kind)) for name, kind in prepared.get("partitions", ())))

    def as_json(self) -> dict[str, Any]:
        return {"partitions": [list(key) for key in self.keys]} if self.keys else {}

    @property
    def fields(self) -> list[pa.Field[Any]]:
        return [pa.field(name, TYPES[kind]) for name, kind in self.keys]

    def values(self, file: Place) -> dict[str, pa.Scalar[Any]]:
        """The keys' values for a file: of the last folders of its path that are named after them."""
        if not self.keys:
            return {}
        folders = [folder for folder in str(file).split("/")[:-1] if "=" in folder]
        pairs = [_pair(file, folder) for folder in folders[-len(self.keys) :]]
        made: dict[str, pa.Scalar[Any]] = {}
        for (name, kind), (found, text) in zip(self.keys, pairs, strict=True):
            assert found == name, (file, name)
            value = int(text) if text is not None and kind == "int32" else text
            made[name] = pa.scalar(value, TYPES[kind])
        return made

    def check(self, schema: pa.Schema, file: Place) -> None:
        """Raises InvalidDataset (partition_conflict) when a key is a column of the file as well."""
        for name, _ in self.keys:
            if name in schema.names:
                reason = f"has a column {name!r}, which is also a key of its folders; rename one of them"
                raise InvalidDataset("partition_conflict", str(file), reason, name)


def _pairs(base: Place, file: Place) -> list[tuple[str, str | None]]:
    """Keys and values; folders of other names were allowed by a pattern, and mean nothing."""
    return [_pair(file, folder) for folder in relative(file, base)[:-1] if "=" in folder]


def _pair(file: Place, folder: str) -> tuple[str, str | None]:
    name, _, value = folder.partition("=")
    try:
        key, text = unquote(name, errors="strict"), unquote(value, errors="strict")
    except UnicodeDecodeError:
        raise InvalidDataset("file_name", str(file), f"the folder {folder!r} is not UTF-8") from None
    if not key:
        raise InvalidDataset("file_name", str(file), f"the folder {folder!r} has no key before its =")
    return key, None if text == NULL else text


def _type_of(texts: Sequence[str | None]) -> str:
    known = [text for text in texts if text is not None]
    return "int32" if known and all(_is_int32(text) for text in known) else "string"


def _is_int32(text: str) -> bool:
    digits = text.removeprefix("-")
    return digits.isascii() and digits.isdigit() and int(text) in INT32 if len(text) < 20 else False


def _shown(names: Sequence[str]) -> str:
    return ", ".join(repr(name) for name in names) or "none"
