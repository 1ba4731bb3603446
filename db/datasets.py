"""Parquet datasets: one file, or the *.parquet files of one folder. Checked here from their footers alone.

Reading rows is db.parquet, publishing db.publish, URIs and roots db.uris.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa


@dataclass(frozen=True, slots=True)
class DataFile:
    path: Path
    num_rows: int


@dataclass(frozen=True, slots=True)
class Dataset:
    """Files in reading order, their common schema, and the sum of their rows."""

    files: tuple[DataFile, ...]
    schema: pa.Schema
    num_rows: int
