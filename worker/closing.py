"""Closing: the part of a shard whose job is cancelled or has expired, from what its attempts have finished."""

from __future__ import annotations

from typing import BinaryIO

from db.models import JobStatus
from db.shards import Claim
from db.stores import Place
from worker.checkpoints import Saved
from worker.parts import PartWriter, Tally, to_batch
from worker.rows import Result
from worker.shard_rows import read_shard
from worker.shards import Layout, Made, make

# Error code and reason of a row that was not computed.
UNDONE = {
    JobStatus.CANCELLING: ("cancelled", "the job was cancelled before this row was computed"),
    JobStatus.EXPIRING: ("expired", "the job's deadline passed before this row was computed"),
}


def close(folder: Place, claim: Claim, layout: Layout, saved: Saved, stopping: JobStatus) -> Made:
    """Write and publish the part: every row of the shard, the finished ones and the others as error rows."""
    tally, (code, message) = Tally(), UNDONE[stopping]
    undone = Result({}, code, (code, message))

    def write(sink: BinaryIO) -> None:
        writer = PartWriter(sink, layout.schema)
        try:
            for first, batch in read_shard(claim, layout.columns):
                found = saved.results(first, first + batch.num_rows, layout.prefix)
                results = [found.get(first + offset, undone) for offset in range(batch.num_rows)]
                for result in results:
                    if result is undone:
                        tally.leave(code)
                    else:
                        tally.add(result)
                writer.write(to_batch(batch.select(list(layout.kept)), results, layout.schema, layout.prefix))
            writer.finish(claim.job_id, claim.index, tally.counts)
        except BaseException:
            writer.abandon()
            raise

    return make(folder, claim, write, tally)
