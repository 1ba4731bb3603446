"""Request and response models of the HTTP API. Unknown fields of a request are refused."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from db.eta import End
from db.histograms import Percentiles
from db.models import Job, JobStatus, Upload
from db.progress import Progress
from db.specs import JobSpec

IdempotencyKey = Annotated[
    str,
    Field(min_length=1, max_length=255, description="The same key with the same request gives what the first made."),
]


class JobRequest(JobSpec):
    """A job as a client sends it: a JobSpec whose model may be left to the server."""

    model: Annotated[str, Field(max_length=4096)] = Field(
        default="", description="Model name, folder, .gguf file or hub id; empty: the server's NIGHTMILL_MODEL."
    )
    idempotency_key: IdempotencyKey | None = Field(
        default=None, description="The same key with the same job gives the same job again; so does the header."
    )


class View(BaseModel):
    """A response. A client accepts fields it does not know, so that a newer server can add some."""

    model_config = ConfigDict(frozen=True, extra="ignore")


class Counts(View):
    """Rows and shards so far. `total` is known from submission on; `shards_total` only after validation.

    succeeded + failed + pending + cancelled + expired = total at every moment; `done` is the first two. A job that
    ended early has the rest under `cancelled` (also when it failed) or `expired`.
    """

    total: int
    done: int
    succeeded: int
    failed: int
    pending: int = 0
    cancelled: int = 0
    expired: int = 0
    shards_total: int | None
    shards_done: int


class Tokens(View):
    prompt: int
    cached: int
    output: int


class Rates(View):
    """Means over the time since the job's first shard began, the loading of the model left out: rows finished, and
    tokens read (cached ones included) and written."""

    rows_per_second: float | None
    tokens_per_second: float | None


class PercentilesView(View):
    """Of `count` values, as measured in the shards that are finished."""

    p50: float
    p90: float
    p99: float
    count: int


class EndView(View):
    """The estimated end of a job, and between which moments it lies in eight of ten cases: from the rows that are done
    and those that are left, whose lengths are known, and from how evenly the job has got on."""

    at: datetime
    earliest: datetime
    latest: datetime

    @classmethod
    def of(cls, end: End) -> EndView:
        return cls(at=as_time(end.at), earliest=as_time(end.earliest), latest=as_time(end.latest))


class JobError(View):
    code: str
    message: str


class JobView(View):
    id: str
    status: JobStatus
    input: str
    output: str
    model: str
    recipe: str
    counts: Counts
    tokens: Tokens
    rates: Rates
    eta_seconds: float | None = Field(description="Until the estimated end; none when it is unknown or past.")
    ends: EndView | None = Field(default=None, description="When it will end; none as `eta_seconds`.")
    elapsed_seconds: float | None
    created_at: datetime
    started_at: datetime | None = Field(description="When a worker took the job up, and began to load the model.")
    running_at: datetime | None = Field(default=None, description="When its first shard began.")
    finished_at: datetime | None
    expires_at: datetime | None = Field(default=None, description="Deadline, after which unfinished rows expire.")
    priority: int = 0
    retry_of: str | None = Field(default=None, description="The job whose failed rows this one tries again.")
    error: JobError | None
    percentiles: dict[str, PercentilesView] = Field(
        default={},
        description="How long rows and requests took and how full the engine was, by measure (docs/recipes.md); "
        "empty in lists, and while no shard is finished.",
    )
    spec: JobSpec

    @classmethod
    def of(
        cls,
        job: Job,
        progress: Progress,
        now: float,
        end: End | None,
        percentiles: Mapping[str, Percentiles] = MappingProxyType({}),
    ) -> JobView:
        """`now` is the database's clock, in seconds since 1970, as every time of the row is."""
        spec = JobSpec.model_validate(job.spec)
        done = progress.rows_succeeded + progress.rows_failed
        elapsed = None if job.started_at is None else max(0.0, (job.finished_at or now) - job.started_at)
        running = None if job.running_at is None else max(0.0, (job.finished_at or now) - job.running_at)
        rows_rate = done / running if running and done else None
        tokens = progress.prompt_tokens + progress.output_tokens
        open_rows = job.num_rows - done
        rest = "pending"
        if job.status.terminal:
            rest = "expired" if job.status is JobStatus.EXPIRED else "cancelled"
        return cls(
            id=job.id,
            status=job.status,
            input=spec.input,
            output=job.output_uri,
            model=spec.model,
            recipe=spec.recipe.kind,
            counts=Counts(
                total=job.num_rows,
                done=done,
                succeeded=progress.rows_succeeded,
                failed=progress.rows_failed,
                **{rest: open_rows},
                shards_total=job.num_shards,
                shards_done=job.shards_done,
            ),
            tokens=Tokens(prompt=progress.prompt_tokens, cached=progress.cached_tokens, output=progress.output_tokens),
            rates=Rates(rows_per_second=rows_rate, tokens_per_second=tokens / running if running and tokens else None),
            eta_seconds=None if end is None else end.at - now,
            ends=None if end is None else EndView.of(end),
            elapsed_seconds=elapsed,
            created_at=as_time(job.created_at),
            started_at=None if job.started_at is None else as_time(job.started_at),
            running_at=None if job.running_at is None else as_time(job.running_at),
            finished_at=None if job.finished_at is None else as_time(job.finished_at),
            expires_at=None if job.expires_at is None else as_time(job.expires_at),
            priority=job.priority,
            retry_of=job.retry_of,
            error=None if job.error_code is None else JobError(code=job.error_code, message=job.error_message or ""),
            percentiles={measure: PercentilesView(**asdict(each)) for measure, each in percentiles.items()},
            spec=spec,
        )


class JobPage(View):
    """Newest first. `next` goes into the next request's `after`; none at the end."""

    jobs: list[JobView]
    next: str | None


class UploadView(View):
    """An uploaded Parquet file; `uri` is what a job's `input` takes."""

    id: str
    uri: str
    filename: str
    bytes: int
    rows: int
    created_at: datetime

    @classmethod
    def of(cls, upload: Upload) -> UploadView:
        return cls(
            id=upload.id,
            uri=f"upload://{upload.id}",
            filename=upload.filename,
            bytes=upload.num_bytes,
            rows=upload.num_rows,
            created_at=as_time(upload.created_at),
        )


def as_time(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, tz=UTC)
