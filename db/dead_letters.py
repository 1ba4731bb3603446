"""Where a job's failed rows lie: a dataset of the input's schema with one more column, for a retry or for people."""

from __future__ import annotations

from db.errors import NothingToRetry
from db.stores import Place, store_of

FOLDER = "_errors"


def folder_of(job_id: str, output: Place) -> Place:
    """The folder of a job's failed rows. Raises NothingToRetry when no row failed."""
    folder = output / FOLDER
    if next(store_of(folder).walk(folder, "part-"), None) is None:
        raise NothingToRetry(job_id)
    return folder
