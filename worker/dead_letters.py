"""Dead letters: the failed rows of a shard as they were in the input, with their errors: a dataset to submit again."""

from __future__ import annotations

from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from db.columns import DEAD_LETTER_ERROR, ERROR
from db.dead_letters import FOLDER
from db.footers import open_parquet
from db.publish import publish
from db.shards import Claim
from db.stores import Place
from worker.parts import part_name
from worker.shard_rows import read_shard, source_schema


def write(folder: Place, claim: Claim) -> None:
    """Publish the error rows of a shard whose part is published. A second call changes nothing."""
    source = source_schema(claim)
    kept = [name for name in source.names if name != DEAD_LETTER_ERROR]
    schema = pa.schema([*(source.field(name) for name in kept), pa.field(DEAD_LETTER_ERROR, ERROR)])

    def fill(sink: BinaryIO) -> None:
        errors = _errors(folder / part_name(claim.index), f"{claim.spec.output_prefix}error")
        with pq.ParquetWriter(sink, schema, compression="zstd", write_page_checksum=True) as writer:
            for first, batch in read_shard(claim, kept):
                own = errors.slice(first - claim.first_row, batch.num_rows)
                rows = pa.RecordBatch.from_arrays([*batch.columns, own], schema=schema)
                failed = rows.filter(own.is_valid())
                if failed.num_rows:
                    writer.write_batch(failed)

    publish(folder / FOLDER, part_name(claim.index), fill)


def _errors(part: Place, column: str) -> pa.Array[Any]:
    """A shard's errors: as many as it has rows, and most of them null."""
    with open_parquet(part) as opened:
        table = opened.parquet.read(columns=[column], use_threads=False)
    return pa.concat_arrays(table.column(0).chunks) if table.num_rows else pa.array([], ERROR)
