"""The input rows of a shard: read from where its file lies, the keys of its folders among the columns."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa

from db import parquet
from db.footers import open_parquet
from db.partitions import Partitions
from db.shards import Claim
from db.stores import Place

READ_ROWS = 256  # input rows read together, and written together


def read_shard(claim: Claim, columns: list[str]) -> Iterator[tuple[int, pa.RecordBatch]]:
    """The input rows of a shard, each batch with the job-wide index of its first row."""
    row, file = claim.first_row, place_of(claim)
    constants = Partitions.of(claim.prepared).values(file)
    for batch in parquet.read(
        file,
        claim.start_row,
        claim.stop_row,
        columns,
        batch_rows=READ_ROWS,
        version=claim.file_version,
        constants=constants,
    ):
        yield row, batch
        row += batch.num_rows


def source_schema(claim: Claim) -> pa.Schema:
    """Of the rows that a shard reads: the file's columns, and the keys of its folders."""
    with open_parquet(place_of(claim), claim.file_version) as source:
        schema = source.schema
    for key in Partitions.of(claim.prepared).fields:
        schema = schema.append(key)
    return schema


def place_of(claim: Claim) -> Place:
    return Path(claim.file) if claim.place is None else claim.place
