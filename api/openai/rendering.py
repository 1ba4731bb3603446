"""The output and error files of a batch, written from its job's Parquet parts while they are downloaded.

Lines come in input order. While the job runs, the lines of the finished shards up to the first open one can be read;
`Extent` says how many lines that is, and whether more will come.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from sqlalchemy import select

from api.deps import Services
from api.openai.answers import COLUMNS, Answers
from db import datasets, files, parquet, tenants
from db.models import Job, JobStatus, Shard, ShardStatus
from db.openai_models import Batch
from db.plans import plan_shards
from db.specs import JobSpec

PAGE = 500


class Kind(Enum):
    OUTPUT = "output"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class Stretch:
    """Some rows of the input that have lines: those of a part, or of a shard that was never computed."""

    first_row: int
    start_row: int
    stop_row: int
    file: Path
    done: bool
    num_succeeded: int

    def num_lines(self, kind: Kind) -> int:
        return self.num_succeeded if kind is Kind.OUTPUT else self.stop_row - self.start_row - self.num_succeeded


@dataclass(frozen=True, slots=True)
class Extent:
    num_lines: int
    complete: bool


def answers(batch: Batch, job: Job) -> Answers:
    fingerprint = (job.prepared or {}).get("model_fingerprint")
    spec = JobSpec.model_validate(job.spec)
    return Answers(
        key=batch.id,
        endpoint=batch.endpoint,
        model=batch.model or spec.model,
        created=int(job.created_at),
        fingerprint=None if fingerprint is None else f"fp_{fingerprint}",
    )


def extent(services: Services, job: Job, kind: Kind) -> Extent:
    complete = job.status.terminal
    return Extent(sum(each.num_lines(kind) for each in stretches(services, job)), complete)


def lines(services: Services, batch: Batch, job: Job, kind: Kind, skip: int = 0) -> Iterator[bytes]:
    """The lines of a file but for the first `skip`."""
    written = answers(batch, job)
    for stretch in stretches(services, job):
        count = stretch.num_lines(kind)
        if count <= skip:
            skip -= count
            continue
        for line in _of_part(written, stretch, kind) if stretch.done else _of_input(written, stretch, job):
            if skip:
                skip -= 1
            else:
                yield line


def _of_part(written: Answers, stretch: Stretch, kind: Kind) -> Iterator[bytes]:
    index = stretch.first_row
    for batch in parquet.read(stretch.file, stretch.start_row, stretch.stop_row, COLUMNS):
        for row in batch.to_pylist():
            if (row["error"] is None) == (kind is Kind.OUTPUT):
                yield written.line(row, index)
            index += 1


def _of_input(written: Answers, stretch: Stretch, job: Job) -> Iterator[bytes]:
    """Error lines of rows that the job never came to."""
    code, message = "batch_cancelled", "This request was not executed because the batch was cancelled."
    if job.status is JobStatus.EXPIRED:
        code, message = "batch_expired", "This request could not be executed before the completion window expired."
    elif job.status is JobStatus.FAILED:
        code, message = job.error_code or "batch_failed", job.error_message or "The batch broke off."
    index = stretch.first_row
    for batch in parquet.read(stretch.file, stretch.start_row, stretch.stop_row, ["custom_id"]):
        for custom_id in batch.column(0).to_pylist():
            yield written.undone(str(custom_id), index, code, message)
            index += 1


def stretches(services: Services, job: Job) -> Iterator[Stretch]:
    """What can be read now, in row order: of a job under way the done shards before the first open one."""
    if job.num_shards is None and job.status.terminal:
        yield from _never_split(services, job)
        return
    after = -1
    while True:
        query = select(Shard).where(Shard.job_id == job.id, Shard.index > after).order_by(Shard.index).limit(PAGE)
        with services.sessions.begin() as session:
            shards = list(session.scalars(query))
        for shard in shards:
            done = shard.status is ShardStatus.DONE
            if not done and not job.status.terminal:
                return
            yield _stretch(job, shard) if done else _open_stretch(shard)
        if len(shards) < PAGE:
            return
        after = shards[-1].index


def _stretch(job: Job, shard: Shard) -> Stretch:
    part = Path(job.output_uri) / str(shard.part)
    return Stretch(shard.first_row, 0, shard.stop_row - shard.start_row, part, True, shard.rows_succeeded)


def _open_stretch(shard: Shard) -> Stretch:
    return Stretch(shard.first_row, shard.start_row, shard.stop_row, Path(shard.file), False, 0)


def _never_split(services: Services, job: Job) -> Iterator[Stretch]:
    """The job ended before it had shards: none of its rows was computed."""
    with services.sessions.begin() as session:
        folders = tenants.folders(session, services.settings, job.tenant)
    source = files.resolve_input(JobSpec.model_validate(job.spec).input, folders)
    for plan in plan_shards(datasets.inspect(source), services.settings.shard_rows):
        yield Stretch(plan.first_row, plan.start_row, plan.stop_row, Path(plan.file), False, 0)
