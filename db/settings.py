"""Settings: the only reader of the environment.

Every field is read from `NIGHTMILL_<NAME>`; the two addresses also from the names that hosting platforms set.
"""

from __future__ import annotations

import re
from functools import cached_property
from pathlib import Path
from typing import Literal

from pydantic import AliasChoices, Field, field_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from db import uris
from db.stores import Place, S3Service

WINDOW = re.compile(r"[1-9]\d{0,4}[mhd]")


SECRETS = Path("/run/secrets")  # where container engines put secrets; a file is named as its environment variable


class Settings(BaseSettings):
    """What an operator may set. Frozen; built once per process and handed on."""

    model_config = SettingsConfigDict(
        env_prefix="NIGHTMILL_", frozen=True, extra="ignore", secrets_dir=SECRETS if SECRETS.is_dir() else None
    )

    home: Path = Field(
        default_factory=lambda: Path.home() / ".nightmill",
        description="Folder for the database, the embedded broker, uploads and downloaded models.",
    )
    database_url: str = Field(
        default="",
        repr=False,
        validation_alias=AliasChoices("NIGHTMILL_DATABASE_URL", "DATABASE_URL", "database_url"),
        description="SQLAlchemy URL of the ledger; empty: SQLite in the home folder. PostgreSQL: postgresql+psycopg://…",
    )
    redis_url: str = Field(
        default="",
        repr=False,
        validation_alias=AliasChoices("NIGHTMILL_REDIS_URL", "REDIS_URL", "redis_url"),
        description="Broker address; empty: `nightmill up` starts an embedded Valkey and sets it for its children.",
    )
    data_roots: tuple[Path | str, ...] = Field(
        default=(),
        description="Folders and s3://bucket/prefix (JSON list) that dataset URIs may name; the home's `data` and "
        "`uploads` always count.",
    )
    s3_endpoint: str = Field(
        default="",
        validation_alias=AliasChoices("NIGHTMILL_S3_ENDPOINT", "AWS_ENDPOINT_URL_S3", "s3_endpoint"),
        description="Address of an S3-compatible store, http(s)://host:port; empty: AWS. Credentials come from the AWS "
        "variables of the process (AWS_ACCESS_KEY_ID and its companions).",
    )
    s3_region: str = Field(
        default="",
        validation_alias=AliasChoices("NIGHTMILL_S3_REGION", "AWS_REGION", "AWS_DEFAULT_REGION", "s3_region"),
        description="Region of the buckets; empty: what the AWS configuration of the process says.",
    )
    s3_checkpoint_seconds: float = Field(
        default=2.0, ge=0, description="`checkpoint_seconds` where the output is in a bucket: each one is a request."
    )
    host: str = Field(default="127.0.0.1", description="Address the API listens on; beyond loopback only with `auth`.")
    port: int = Field(default=8642, ge=0, le=65535, description="Port the API listens on; 0 picks a free one.")
    auth: bool = Field(default=False, description="Demand an API key with every request.")
    api_key: str = Field(default="", repr=False, description="The key that client and command line send: nm_….")
    submissions_per_minute: int = Field(default=600, ge=1, description="Most jobs and files a key sends in a minute.")
    url: str = Field(
        default="",
        description="Address of a running API for the command line; empty: this home's own, started if needed.",
    )
    max_upload_bytes: int = Field(default=4 << 30, ge=1, description="Largest Parquet upload, in bytes.")
    max_prompt_bytes: int = Field(default=8 << 20, ge=1, description="Largest text of one row, in bytes of UTF-8.")
    max_job_rows: int = Field(default=1_000_000_000, ge=1, description="Most rows of one job.")

    shard_rows: int = Field(default=1000, ge=1, description="Rows of a shard: the unit of lease, retry and part file.")
    shard_window: int = Field(default=16, ge=1, description="Most shard messages of one job in the queue at once.")
    lease_seconds: float = Field(default=30.0, gt=0, description="Lease of a running shard; renewed every third of it.")
    redispatch_seconds: float = Field(
        default=60.0, gt=0, description="Age at which a sent but unclaimed message is re-sent."
    )
    sweep_seconds: float = Field(
        default=2.0, gt=0, description="Pause between two looks for lost messages and dead leases."
    )
    max_attempts: int = Field(default=3, ge=1, description="Attempts without any progress after which a job fails.")
    retry_seconds: float = Field(
        default=2.0, ge=0, description="Pause after a broken attempt; doubled for each further one, 5 minutes at most."
    )
    checkpoint_seconds: float = Field(
        default=0.1, ge=0, description="Longest time that finished rows lie in memory alone."
    )
    hang_seconds: float = Field(
        default=600.0, gt=0, description="A worker whose engine spends longer on one step ends, and its shards go on."
    )
    worker_threads: int = Field(
        default=4, ge=1, description="Task threads of a worker: shards whose rows share the engine."
    )

    results_bytes: int = Field(
        default=1 << 30,
        ge=0,
        description="Disk for answers that later jobs take over when a row is the same, in bytes; 0: none are kept.",
    )
    results_days: int = Field(default=30, ge=1, description="Days after which an unused answer is forgotten.")

    price_per_hour: float | None = Field(
        default=None,
        ge=0,
        description="What an hour of one worker costs, in any currency; plans say then what a job will.",
    )

    openai_models: dict[str, str] = Field(
        default={},
        description="Other names of models for OpenAI clients, as a JSON object: what requests name -> what is run.",
    )
    openai_completion_windows: tuple[str, ...] = Field(
        default=("24h",),
        description='Completion windows of batches beside 24h, as a JSON list: a number and m, h or d, as in "30m".',
    )
    openai_file_days: int = Field(default=30, ge=1, description="Days after which a batch's input file expires.")
    openai_dataset_days: int = Field(
        default=30,
        ge=0,
        description="Days after a batch's end in which the dataset that its file was converted to is kept.",
    )
    openai_max_file_bytes: int = Field(default=200 << 20, ge=1, description="Largest input file of a batch, in bytes.")
    openai_max_requests: int = Field(default=50_000, ge=1, description="Most requests of one batch.")
    openai_timeout_seconds: float = Field(
        default=600.0, gt=0, description="How long a call of /v1/chat/completions or /v1/completions waits."
    )
    webhook_private_addresses: bool = Field(
        default=False, description="Deliver webhooks to private and local addresses too, and over http."
    )

    model: str = Field(default="smollm2-135m", description="Model of jobs that name none.")
    engine_device: str = Field(
        default="cpu",
        pattern=r"^(cpu|cuda(:\d+)?)$",
        description="Where the engine computes: cpu, cuda or cuda:N. One worker per GPU; never run on one so far.",
    )
    engine_tensor_parallel: int = Field(default=1, ge=1, description="Devices that share one model's layers.")
    engine_dtype: Literal["auto", "fp32", "bf16", "int8", "fp8", "int8_weight_only", "int4_weight_only"] = Field(
        default="fp32",
        description="Number format of the weights; int8 is several times faster on a CPU and changes some answers. The "
        "last two save memory. fp8 needs a GPU. docs/number_formats.md compares them.",
    )
    engine_kv_dtype: Literal["auto", "fp32", "bf16", "int8", "fp8"] = Field(
        default="auto", description="Number format of the key/value cache; auto: as the weights."
    )
    engine_attention: Literal["auto", "triton", "sdpa", "varlen"] = Field(
        default="auto",
        description="What attends; auto: the CPU's own code, on a GPU the Triton kernels. sdpa and varlen are torch's, "
        "to compare with; varlen needs a GPU.",
    )
    engine_deterministic: bool = Field(
        default=False,
        description="On a GPU: products whose bits do not depend on the rows beside them, at some cost in speed.",
    )
    engine_speculation: bool = Field(
        default=True, description="Guess tokens ahead where that pays; changes speed, never an output."
    )
    engine_cache_bytes: int | None = Field(
        default=None,
        ge=1 << 20,
        description="Memory for the key/value cache, in bytes; empty: 1 GiB, on a GPU what the memory fraction leaves.",
    )
    engine_memory_fraction: float = Field(
        default=0.9, gt=0, le=1, description="Of a GPU's memory, what the engine may fill: weights, steps and cache."
    )
    engine_max_sequences: int = Field(default=64, ge=1, description="Sequences computed together.")
    engine_token_budget: int = Field(default=1024, ge=1, description="Tokens computed per step.")
    engine_block_size: int = Field(default=16, ge=1, description="Tokens per block of the key/value cache.")
    engine_prefix_caching: bool = Field(default=True, description="Reuse the cache of shared prompt prefixes.")
    engine_max_model_len: int | None = Field(default=None, ge=1, description="Context limit; empty: the model's own.")
    engine_threads: int | None = Field(default=None, ge=1, description="CPU threads of the engine; empty: all cores.")
    engine_factory: str = Field(
        default="",
        description="`module:function` that builds the engine in place of ours: (model, settings) -> LoadedModel.",
    )
    otel_endpoint: str = Field(
        default="",
        description="Collector that gets OpenTelemetry traces by OTLP over HTTP, as http://host:4318; empty: none are "
        "made. Needs `pip install 'nightmill[otel]'`.",
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        default="info", description="Least level that is logged."
    )
    log_json: bool = Field(default=False, description="Log one JSON object per line instead of text.")

    @field_validator("s3_endpoint", "otel_endpoint")
    @classmethod
    def _bare(cls, value: str) -> str:
        """The address appears in logs, so nothing secret may be in it."""
        if value and not re.fullmatch(r"https?://[^/@?#\s]+/?", value):
            raise ValueError("must have the form http(s)://host:port, without credentials, path or query")
        return value

    @field_validator("data_roots")
    @classmethod
    def _usable(cls, values: tuple[Path | str, ...]) -> tuple[Path | str, ...]:
        """A wrong one is told when the process starts, and not with the first job. Buckets are text, folders paths."""
        buckets = [value for value in values if str(value).startswith("s3:")]
        for value in buckets:
            uris.root(str(value), S3Service("", "", Path()))
        return tuple(value if value in buckets else Path(value) for value in values)

    @field_validator("home")
    @classmethod
    def _absolute(cls, value: Path) -> Path:
        return value.expanduser().absolute()

    @field_validator("openai_completion_windows")
    @classmethod
    def _windows(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for window in value:
            if not WINDOW.fullmatch(window):
                raise ValueError(f"{window!r} is no completion window: write a number and m, h or d, as in 30m")
        return tuple(dict.fromkeys(("24h", *value)))

    @field_validator("database_url")
    @classmethod
    def _psycopg(cls, value: str) -> str:
        """Accept the short PostgreSQL schemes that hosting platforms hand out."""
        for scheme in ("postgres://", "postgresql://"):
            if value.startswith(scheme):
                return "postgresql+psycopg://" + value[len(scheme) :]
        return value

    @cached_property
    def database(self) -> str:
        return self.database_url or f"sqlite:///{self.home / 'nightmill.db'}"

    @cached_property
    def roots(self) -> tuple[Place, ...]:
        """What a dataset URI may lie in: folders, resolved, and prefixes of buckets."""
        return tuple(self.root(str(root)) for root in (self.data_folder, self.uploads, *self.data_roots))

    def root(self, text: str) -> Place:
        """A root as an operator names it. Raises DatasetRefused."""
        return uris.root(text, S3Service(self.s3_endpoint, self.s3_region, self.home / "scratch"))

    @property
    def data_folder(self) -> Path:
        """Where results go when a job names no output."""
        return self.home / "data"

    @property
    def uploads(self) -> Path:
        return self.home / "uploads"

    @property
    def files(self) -> Path:
        """Files of OpenAI clients, as they were sent."""
        return self.home / "files"

    @property
    def results(self) -> Path:
        return self.home / "results" / "results.db"

    @property
    def models(self) -> Path:
        return self.home / "models"
