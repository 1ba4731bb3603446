"""What a simulated fleet is asked and answers: jobs from a JSON file, and the course that they took."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from engine.errors import InvalidRequest

MOST_SHARDS = 100_000  # each takes the ledger some ten milliseconds


class JobLine(BaseModel):
    """A job of the file. What is not said is that of the command's options, and `shard_rows` the settings'."""

    model_config = ConfigDict(extra="forbid", strict=True)

    rows: int = Field(ge=1)
    name: str = Field(default="", max_length=40)
    tenant: str = Field(default="default", min_length=1, max_length=63)
    priority: int = Field(default=0, ge=-100, le=100)
    at: float = Field(default=0.0, ge=0, allow_inf_nan=False)  # the second at which it is submitted
    prompt_tokens: str | int | None = None
    output_tokens: str | int | None = None
    shared_tokens: int | None = Field(default=None, ge=0)
    shard_rows: int | None = Field(default=None, ge=1)


def read(file: Path, shard_rows: int) -> list[JobLine]:
    """The jobs of a file, each with a name and shard_rows. Raises InvalidRequest, which names job and field."""
    try:
        lines = json.loads(file.read_bytes())
    except (OSError, ValueError) as error:
        raise InvalidRequest("jobs", str(file), f"cannot be read: {error}") from error
    if not isinstance(lines, list) or not lines:
        raise InvalidRequest("jobs", str(file), "must be a list of jobs, with at least one")
    found: dict[str, JobLine] = {}
    for number, line in enumerate(lines, start=1):
        where = f"{file}, job {number}"
        try:
            job = JobLine.model_validate(line)
        except ValidationError as error:
            first = error.errors()[0]
            field = ".".join(map(str, first["loc"][:1])) or "it"
            raise InvalidRequest("jobs", where, f"{field}: {first['msg']}") from error
        job.name, job.shard_rows = job.name or f"job {number}", job.shard_rows or shard_rows
        if job.name in found:
            raise InvalidRequest("jobs", where, f"name: there is another {job.name!r}")
        found[job.name] = job
    count = sum(-(-job.rows // (job.shard_rows or 1)) for job in found.values())
    if count > MOST_SHARDS:
        reason = f"has {count:,} shards, of which at most {MOST_SHARDS:,} are simulated: say larger shard_rows"
        raise InvalidRequest("jobs", str(file), reason)
    return list(found.values())


@dataclass(frozen=True, slots=True)
class FleetJob:
    """`kind`: the place of its rows' profile; `at`: the second at which it is submitted."""

    name: str
    tenant: str
    rows: int
    shard_rows: int
    kind: int = 0
    priority: int = 0
    at: float = 0.0

    @classmethod
    def of(cls, line: JobLine, kind: int) -> FleetJob:
        """Of a line that `read` has completed."""
        assert line.shard_rows is not None, "read says it"
        return cls(line.name, line.tenant, line.rows, line.shard_rows, kind, line.priority, line.at)


@dataclass(frozen=True, slots=True)
class JobCourse:
    """Seconds of the clock: the submission, the first shard taken up, the end."""

    name: str
    tenant: str
    rows: int
    priority: int
    at: float
    began: float
    ended: float
    rows_per_second: float  # from its first shard to its end


@dataclass(slots=True)
class TenantShare:
    """Of the shards at work while several tenants had open jobs: the part it had, and one as large as each other's."""

    share: float = 0.0
    equal: float = 0.0


@dataclass(frozen=True, slots=True)
class FleetCourse:
    seconds: float  # from the first submission to the end of the last job
    rows_per_second: float
    jobs: Sequence[JobCourse]  # by submission
    tenants: dict[str, TenantShare]
    contested_seconds: float  # in which several tenants had open jobs
    utilisation: Sequence[float]  # of each worker: the share of the time in which its engine had rows
    tail_seconds: float  # from the first worker that got no more work to the end
