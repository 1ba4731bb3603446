"""Response models of results: finished parts, failed rows, and which rows are there."""

from __future__ import annotations

from collections.abc import Iterable

from pydantic import Field

from api.schemas import View
from db.models import JobStatus, Shard


class ResultFile(View):
    """One Parquet part, of the input's rows [first_row, stop_row). Parts in the order of their names are the rows in
    input order."""

    name: str
    rows: int
    first_row: int = 0
    stop_row: int = 0
    bytes: int
    sha256: str
    url: str

    @classmethod
    def of(cls, shard: Shard, url: str) -> ResultFile:
        num_rows = shard.stop_row - shard.start_row
        return cls(
            name=shard.part or "",
            rows=num_rows,
            first_row=shard.first_row,
            stop_row=shard.first_row + num_rows,
            bytes=shard.part_bytes or 0,
            sha256=shard.part_sha256 or "",
            url=url,
        )


class RowRange(View):
    """Rows [first, stop) of the input."""

    first: int
    stop: int


def joined(files: Iterable[ResultFile]) -> list[RowRange]:
    """The row ranges that files in order cover, as few as there can be."""
    ranges: list[RowRange] = []
    for file in files:
        if ranges and ranges[-1].stop == file.first_row:
            ranges[-1] = RowRange(first=ranges[-1].first, stop=file.stop_row)
        elif file.stop_row > file.first_row:
            ranges.append(RowRange(first=file.first_row, stop=file.stop_row))
    return ranges


class ResultPage(View):
    """The parts that are finished, in order, and the manifest once there is one.

    `complete` says that the job ended and every row is in some part. `next` goes into the next request's `after`.
    """

    job_id: str
    status: JobStatus
    output: str
    partial: bool = Field(default=False, description="The job goes on: more parts may come. These stay as they are.")
    complete: bool
    manifest_url: str | None
    ranges: list[RowRange] = Field(default=[], description="The input's rows that the parts of this page have.")
    files: list[ResultFile]
    next: int | None


class ErrorFile(View):
    """One Parquet file of failed rows: the input's columns, and `nightmill_error`."""

    name: str
    rows: int
    url: str

    @classmethod
    def of(cls, shard: Shard, url: str) -> ErrorFile:
        failed = shard.stop_row - shard.start_row - shard.rows_succeeded
        return cls(name=shard.part or "", rows=failed, url=url)


class ErrorPage(View):
    """The files of failed rows so far, in order. `next` goes into the next request's `after`."""

    job_id: str
    status: JobStatus
    partial: bool
    files: list[ErrorFile]
    next: int | None
