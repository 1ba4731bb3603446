"""Rows of a shard that are read and not written yet, and their results."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from worker.recipes import Row
from worker.rows import Result


@dataclass(slots=True)
class Chunk:
    """Some input rows whose results are on their way. Written as one when the last of them is there."""

    kept: pa.RecordBatch
    results: list[Result | None]
    missing: int

    @classmethod
    def of(cls, kept: pa.RecordBatch) -> Chunk:
        return cls(kept, [None] * kept.num_rows, kept.num_rows)

    def put(self, offset: int, result: Result) -> None:
        assert self.results[offset] is None, f"row {offset} of a chunk is answered twice"
        self.results[offset] = result
        self.missing -= 1


@dataclass(frozen=True, slots=True)
class Unasked:
    """A row that has a text and is no request yet. `index`: in the job."""

    index: int
    chunk: Chunk
    offset: int
    row: Row
    text: str
