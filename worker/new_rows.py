"""New rows: what of an input the earlier runs of its schedule have not computed, as a dataset beside the output.

Every run leaves the keys of its rows in its output's `_new` folder; the next runs read those of the runs that
completed, so that a run which failed or was cancelled marks nothing as computed. A key is the BLAKE2b-128 of a column's
value, or of the whole row. Two rows of one input with the same key are both new: only earlier runs are compared with.
Keys lie in a temporary SQLite file, not in memory, which grows neither with the input nor with the number of runs.
"""

from __future__ import annotations

import sqlite3
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from db import datasets, parquet, stores
from db.datasets import Dataset
from db.errors import DatasetRefused, InvalidDataset
from db.models import Job
from db.publish import publish
from db.specs import JobSpec
from db.stores.places import relative
from db.uris import resolve, resolve_output

FOLDER = "_new"
ROWS, KEYS = "rows.parquet", "keys.parquet"
KEY_BYTES = 16
KEY = pa.binary(KEY_BYTES)
KEY_SCHEMA = pa.schema([pa.field("key", KEY, nullable=False)])
READ_ROWS = 4096  # per query, whose parameters SQLite limits to 32,766
GROUP_ROWS, GROUP_BYTES = 20_000, 32 << 20
SETUP = """
    PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF; PRAGMA cache_size = -65536;
    CREATE TABLE seen (key BLOB PRIMARY KEY) WITHOUT ROWID;
    CREATE TABLE fresh (key BLOB PRIMARY KEY) WITHOUT ROWID;
    BEGIN
"""


@dataclass(frozen=True, slots=True)
class Place:
    """A folder for temporary files, and the roots of the job's tenant."""

    home: Path
    roots: Sequence[stores.Place]


@dataclass(frozen=True, slots=True)
class NewRows:
    """The new rows as they were in the input, and how many rows there were of each kind."""

    dataset: Dataset
    counts: dict[str, int]


def find(
    place: Place,
    job: Job,
    spec: JobSpec,
    dataset: Dataset,
    earlier: Sequence[str],
    go_on: Callable[[], None],
) -> NewRows:
    """Publish the new rows and the keys of them under the job's output. `earlier`: outputs of the completed runs.

    `go_on` is called now and then and may raise. A broken attempt is followed by another, which publishes the same.
    Raises InvalidDataset (`ledger_missing`, `wrong_type`).
    """
    assert spec.only_new is not None
    folder = _folder(place.roots, job)
    place.home.mkdir(parents=True, exist_ok=True)
    with (
        tempfile.TemporaryDirectory(prefix="new-rows-", dir=place.home) as scratch,
        closing(sqlite3.connect(Path(scratch) / "keys.db", isolation_level=None)) as keys,
    ):
        keys.executescript(SETUP)
        for output in earlier:
            _load(keys, place.roots, output, go_on)
        sieve = _Sieve(keys, spec.only_new.key, go_on)
        publish(folder / FOLDER, ROWS, lambda sink: sieve.write(dataset, sink))
        publish(folder / FOLDER, KEYS, lambda sink: _write_keys(keys, sink))
    return NewRows(datasets.inspect(folder / FOLDER / ROWS), sieve.counts)


def _folder(roots: Sequence[stores.Place], job: Job) -> stores.Place:
    """The output's folder, made. After an attempt that broke, there may be new rows in it and nothing else."""
    try:
        folder = resolve_output(job.output_uri, roots)
    except DatasetRefused:
        folder = resolve(job.output_uri, roots)
        entry = stores.store_of(folder).look(folder)
        if job.fence == 1 or entry is None or not entry.is_folder or _names(folder) - {FOLDER}:
            raise
    stores.store_of(folder).prepare(folder)
    return folder


def _names(folder: stores.Place) -> set[str]:
    return {relative(entry.place, folder)[0] for entry in stores.store_of(folder).walk(folder)}


def _load(keys: sqlite3.Connection, roots: Sequence[stores.Place], output: str, go_on: Callable[[], None]) -> None:
    path = f"{output}/{FOLDER}/{KEYS}"
    try:
        ledger = datasets.inspect(resolve(path, roots))
    except DatasetRefused as error:
        reason = f"{error.reason}: which rows an earlier run has computed is written there; put it back, or create "
        raise InvalidDataset("ledger_missing", path, reason + "the schedule anew to compute every row") from None
    for batch in parquet.read(ledger.files[0].path, 0, ledger.num_rows, ["key"], batch_rows=READ_ROWS):
        go_on()
        keys.executemany("INSERT OR IGNORE INTO seen VALUES (?)", ((key,) for key in batch.column(0).to_pylist()))


def _write_keys(keys: sqlite3.Connection, sink: BinaryIO) -> None:
    found = keys.execute("SELECT key FROM fresh ORDER BY key")
    with pq.ParquetWriter(sink, KEY_SCHEMA, compression="zstd", write_page_checksum=True) as writer:
        while page := found.fetchmany(GROUP_ROWS):
            batch = pa.RecordBatch.from_arrays([pa.array([key for (key,) in page], KEY)], schema=KEY_SCHEMA)
            writer.write_batch(batch)


class _Sieve:
    """Writes the rows of an input whose keys were not seen, and remembers those keys."""

    def __init__(self, keys: sqlite3.Connection, key: str | None, go_on: Callable[[], None]) -> None:
        self._keys = keys
        self._key = key
        self._go_on = go_on
        self.counts = {"input": 0, "computed": 0, "skipped": 0, "without_key": 0}

    def write(self, dataset: Dataset, sink: BinaryIO) -> None:
        # What files of one dataset may differ in, nulls and metadata, must fit all of them.
        schema = pa.schema([field.with_nullable(True) for field in dataset.schema])
        waiting: list[pa.RecordBatch] = []
        with pq.ParquetWriter(sink, schema, compression="zstd", write_page_checksum=True) as writer:
            for batch in _batches(dataset, schema):
                self._go_on()
                waiting.append(batch.filter(self._fresh(batch)))
                if _full(waiting):
                    writer.write_table(pa.Table.from_batches(waiting, schema))
                    waiting = []
            if any(kept.num_rows for kept in waiting):
                writer.write_table(pa.Table.from_batches(waiting, schema))

    def _fresh(self, batch: pa.RecordBatch) -> pa.BooleanArray:
        found = digests(batch, self._key)
        wanted = list({key for key in found if key is not None})
        marks = ",".join("?" * len(wanted))
        seen = {key for (key,) in self._keys.execute(f"SELECT key FROM seen WHERE key IN ({marks})", wanted)}  # noqa: S608 - question marks alone
        fresh = [key is None or key not in seen for key in found]
        new = ((key,) for key, is_fresh in zip(found, fresh, strict=True) if is_fresh and key is not None)
        self._keys.executemany("INSERT OR IGNORE INTO fresh VALUES (?)", new)
        self.counts["input"] += len(found)
        self.counts["computed"] += sum(fresh)
        self.counts["skipped"] += len(found) - sum(fresh)
        self.counts["without_key"] += found.count(None)
        return pa.array(fresh, pa.bool_())


def _full(waiting: Sequence[pa.RecordBatch]) -> bool:
    return sum(kept.num_rows for kept in waiting) >= GROUP_ROWS or sum(kept.nbytes for kept in waiting) >= GROUP_BYTES


def _batches(dataset: Dataset, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    for file in dataset.files:
        constants = dataset.partitions.values(file.path)
        rows = parquet.read(
            file.path, 0, file.num_rows, schema.names, READ_ROWS, version=file.version or None, constants=constants
        )
        for batch in rows:
            yield pa.RecordBatch.from_arrays(batch.columns, schema=schema)


def digests(batch: pa.RecordBatch, key: str | None) -> list[bytes | None]:
    """A key per row; None where the key column is null: such a row cannot be known again, and is always new."""
    if key is not None:
        values = _plain(batch, key)
        return [None if value is None else _digest(value) for value in values]
    names = sorted(batch.schema.names)  # a dataset written with its columns in another order has the same rows
    rows = zip(*(_plain(batch, name) for name in names), strict=True)
    return [_digest(tuple(zip(names, row, strict=True))) for row in rows]


def _digest(value: object) -> bytes:
    """`repr` tells apart what differs in type or value, however it is nested."""
    return blake2b(repr(value).encode("utf-8", "surrogatepass"), digest_size=KEY_BYTES).digest()


def _plain(batch: pa.RecordBatch, name: str) -> list[object]:
    column = batch.column(name)
    try:
        if pa.types.is_temporal(column.type):
            # As a number: Python knows no nanoseconds, and shows zones as the platform likes.
            column = column.view(pa.int32() if column.type.bit_width == 32 else pa.int64())
        values: list[object] = column.to_pylist()
    except (ValueError, pa.ArrowException) as error:
        reason = f"column {name!r} of type {column.type} cannot identify a row: {error}"
        raise InvalidDataset("wrong_type", "input", reason, name) from None
    return values
