"""Where a job's failed rows lie: a dataset of the input's schema with one more column, for a retry or for people."""

from __future__ import annotations

from pathlib import Path

from db.errors import NothingToRetry

FOLDER = "_errors"


def folder_of(job_id: str, output_uri: str) -> Path:
    """The folder of a job's failed rows. Raises NothingToRetry when no row failed."""
    folder = Path(output_uri) / FOLDER
    if not any(folder.glob("part-*.parquet")):
        raise NothingToRetry(job_id)
    return folder
