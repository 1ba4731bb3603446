"""How long the input of each shard is, in bytes of the columns that are read: what is left of a job is known so in more
than rows (db.eta). It decides nothing else, and where it is not known it is 0."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from operator import attrgetter

import numpy as np

from db import parquet
from db.datasets import DataFile, Dataset
from db.errors import InvalidDataset
from db.footers import open_parquet
from db.plans import ShardPlan

MOST_FILES = 1000  # of an input whose footers are read for this
MOST_BYTES = 64 << 20  # of an input that is read through; of a larger one, row groups are taken to be even inside
Piece = tuple[int, int]  # rows that follow each other, and their bytes


def measured(dataset: Dataset, plans: Iterable[ShardPlan], columns: Sequence[str]) -> Iterator[ShardPlan]:
    """The plans with `num_bytes`. What has to be read for them is read at once; they are made lazily."""
    names = set(columns) - {key.name for key in dataset.partitions.fields}
    return _spread(plans, _pieces(dataset, names) if len(dataset.files) <= MOST_FILES else {})


def _spread(plans: Iterable[ShardPlan], pieces: dict[str, list[Piece]]) -> Iterator[ShardPlan]:
    for file, own in groupby(plans, attrgetter("file")):
        rows, sizes = np.array([(0, 0), *pieces.get(file, [])], np.float64).cumsum(axis=0).T
        for plan in own:
            low, high = np.interp((plan.start_row, plan.stop_row), rows, sizes)
            yield replace(plan, num_bytes=round(high - low))


def _pieces(dataset: Dataset, names: set[str]) -> dict[str, list[Piece]]:
    """By file. A file that cannot be read is left to whoever reads its shards."""
    try:
        claimed = {str(file.path): _of_footer(file, names) for file in dataset.files}
        if sum(size for pieces in claimed.values() for _, size in pieces) > MOST_BYTES:
            return claimed
        return {str(file.path): _of_rows(file, names) for file in dataset.files}
    except InvalidDataset:
        return {}


def _of_footer(file: DataFile, names: set[str]) -> list[Piece]:
    """Row groups as the footer has them."""
    with open_parquet(file.path, file.version or None) as opened:
        return [
            (group.num_rows, sum(chunk.num_bytes for chunk in group.chunks if chunk.path and chunk.path[0] in names))
            for group in opened.row_groups
        ]


def _of_rows(file: DataFile, names: set[str]) -> list[Piece]:
    batches = parquet.read(file.path, 0, file.num_rows, sorted(names), version=file.version or None)
    return [(batch.num_rows, batch.nbytes) for batch in batches]
