"""Which rows make a shard. A plan is derived from the input's footers alone, so that every attempt derives the same."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from db.datasets import Dataset


@dataclass(frozen=True, slots=True)
class ShardPlan:
    """Rows [start_row, stop_row) of one file; `first_row` is the job-wide index of the first of them."""

    index: int
    file: str
    start_row: int
    stop_row: int
    first_row: int
    version: str | None = None  # of the file
    num_bytes: int = 0  # of the columns that are read; 0: not known (db.lengths)

    @property
    def num_rows(self) -> int:
        return self.stop_row - self.start_row


def plan_shards(dataset: Dataset, shard_rows: int, max_rows: int | None = None) -> Iterator[ShardPlan]:
    """Shards of at most `shard_rows` rows in input order, `max_rows` rows in all; no shard spans two files.

    An input without rows has one shard of no rows, so that its typed, empty part is written as well.
    """
    left = dataset.num_rows if max_rows is None else min(max_rows, dataset.num_rows)
    index = first = 0
    if left == 0:
        yield ShardPlan(0, str(dataset.files[0].path), 0, 0, 0, dataset.files[0].version or None)
    for file in dataset.files:
        take = min(file.num_rows, left)
        for start in range(0, take, shard_rows):
            stop = min(start + shard_rows, take)
            yield ShardPlan(index, str(file.path), start, stop, first, file.version or None)
            index, first = index + 1, first + stop - start
        left -= take
