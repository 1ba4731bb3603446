"""Parts: the output files. Schema, writing, and recognising a part that an earlier attempt has finished."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from operator import attrgetter
from typing import BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from db.columns import TOKEN_COLUMNS
from db.errors import InvalidDataset
from db.footers import open_parquet
from db.progress import Progress
from db.stores import Place
from worker.counters import Counters
from worker.measures import Measures
from worker.rows import Result

ROW_GROUP_ROWS = 10_000
ROW_GROUP_BYTES = 32 << 20  # of the columns in memory, before encoding
OF_RESULT = frozenset((*TOKEN_COLUMNS, "finish_reason", "logprobs"))  # the other columns are the recipe's values
META_JOB, META_SHARD, META_COUNTS = "nightmill.job", "nightmill.shard", "nightmill.counts"


class PartConflict(Exception):
    """A file with the part's name lies in the output folder and is not this shard's part."""

    code = "output_conflict"

    def __init__(self, path: Place, reason: str) -> None:
        super().__init__(f"{path}: {reason}")
        self.path = path


@dataclass(frozen=True, slots=True)
class Counts:
    """What a part holds: rows and tokens, and its error rows by code; and what the engine did meanwhile."""

    progress: Progress
    errors: dict[str, int]
    engine: Counters


class Tally:
    """Counts the results of a shard. One thread adds; any thread may look."""

    def __init__(self) -> None:
        self._errors: Counter[str] = Counter()
        self._rows = [0, 0]  # succeeded, failed
        self._tokens = [0, 0, 0]  # of prompts, of those cached, of outputs
        self.engine: Counters = {}
        self.measures = Measures()
        self.rows_reused = 0  # answered by an identical row's answer

    def add(self, result: Result) -> None:
        if result.error is None:
            self._rows[0] += 1
        else:
            self._rows[1] += 1
            self._errors[result.error[0]] += 1
        tokens = self._tokens
        tokens[0] += result.prompt_tokens
        tokens[1] += result.cached_tokens
        tokens[2] += result.output_tokens

    @property
    def progress(self) -> Progress:
        return Progress(*self._rows, *self._tokens)

    def leave(self, code: str) -> None:
        """A row that is written and was not computed: neither succeeded nor failed."""
        self._errors[code] += 1

    @property
    def counts(self) -> Counts:
        engine = {**self.engine, "rows_reused": self.rows_reused, **self.measures.counters()}
        return Counts(self.progress, dict(sorted(self._errors.items())), engine)


def part_name(index: int) -> str:
    return f"part-{index:05d}.parquet"


def to_batch(kept: pa.RecordBatch, results: Sequence[Result], schema: pa.Schema, prefix: str) -> pa.RecordBatch:
    """Output rows: the kept columns of some input rows beside their results."""
    arrays = [kept.column(name) for name in kept.schema.names]
    added = list(schema)[len(arrays) :]
    arrays += [pa.array(_column(results, field.name.removeprefix(prefix)), field.type) for field in added]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _column(results: Sequence[Result], name: str) -> Sequence[object]:
    if name == "error":
        errors = (result.error for result in results)
        return [None if error is None else {"code": error[0], "message": error[1]} for error in errors]
    if name in OF_RESULT:
        return list(map(attrgetter(name), results))
    return [result.values.get(name) for result in results]


class PartWriter:
    """Writes batches as row groups of a bounded size. The file is a part only once `finish` has returned."""

    def __init__(self, sink: BinaryIO, schema: pa.Schema) -> None:
        # Data page checksums: a reader that verifies them finds a flipped bit, which Arrow otherwise returns as data.
        self._writer = pq.ParquetWriter(sink, schema, compression="zstd", write_page_checksum=True)
        self._schema = schema
        self._batches: list[pa.RecordBatch] = []
        self._rows = self._bytes = 0
        self.num_rows = 0

    def write(self, batch: pa.RecordBatch) -> None:
        self._batches.append(batch)
        self._rows += batch.num_rows
        self._bytes += batch.nbytes
        if self._rows >= ROW_GROUP_ROWS or self._bytes >= ROW_GROUP_BYTES:
            self._flush()

    def _flush(self) -> None:
        table = pa.Table.from_batches(self._batches, self._schema)
        if table.num_rows:
            self._writer.write_table(table, row_group_size=table.num_rows)
        self.num_rows += table.num_rows
        self._batches, self._rows, self._bytes = [], 0, 0

    def finish(self, job_id: str, shard: int, counts: Counts) -> None:
        self._flush()
        known = {META_JOB: job_id, META_SHARD: str(shard), META_COUNTS: json.dumps(asdict(counts))}
        self._writer.add_key_value_metadata(known)
        self._writer.close()

    def abandon(self) -> None:
        """Let the writer go without leaving it to the garbage collector, which would write to a closed file."""
        if self._writer.is_open:
            self._writer.close()


def read_counts(path: Place, job_id: str, shard: int, num_rows: int) -> Counts:
    """The counts of a finished part, from its footer. Raises PartConflict when the file is not that part."""
    try:
        with open_parquet(path) as part:
            metadata = part.parquet.metadata
            known = {
                key.decode(): value.decode() for key, value in (metadata.metadata or {}).items() if b"nightmill" in key
            }
    except (InvalidDataset, ValueError) as error:
        raise PartConflict(path, f"not a readable Parquet file: {error}") from error
    if (known.get(META_JOB), known.get(META_SHARD)) != (job_id, str(shard)) or metadata.num_rows != num_rows:
        raise PartConflict(path, f"not the part of shard {shard} of job {job_id}")
    counts = json.loads(known[META_COUNTS])
    return Counts(Progress(**counts["progress"]), counts["errors"], counts["engine"])
