"""The tables. Times are seconds since 1970 on the database's own clock (see db.session.db_now)."""

from __future__ import annotations

import enum
from typing import Any

from sqlalchemy import (
    JSON,
    BigInteger,
    CheckConstraint,
    ForeignKey,
    Index,
    Integer,
    String,
    UniqueConstraint,
    text,
)
from sqlalchemy.orm import Mapped, mapped_column

from db.accounts import DEFAULT, Tenant
from db.base import Base, BigId, text_enum


class JobStatus(enum.StrEnum):
    """The life of a job. The last five are terminal."""

    VALIDATING = "validating"  # accepted; a worker has not yet split it
    RUNNING = "running"
    PAUSED = "paused"  # nothing new is begun, and what runs is saved and given back
    FINALIZING = "finalizing"  # no open shard; the manifest is being written
    CANCELLING = "cancelling"  # finished rows of begun shards are being written out
    EXPIRING = "expiring"  # the same after the deadline, and of all shards
    COMPLETED = "completed"
    COMPLETED_WITH_ERRORS = "completed_with_errors"
    FAILED = "failed"  # no row succeeded, or the job itself broke
    CANCELLED = "cancelled"
    EXPIRED = "expired"

    @property
    def terminal(self) -> bool:
        return self in TERMINAL


TERMINAL = frozenset(
    {JobStatus.COMPLETED, JobStatus.COMPLETED_WITH_ERRORS, JobStatus.FAILED, JobStatus.CANCELLED, JobStatus.EXPIRED}
)
STOPPING = frozenset({JobStatus.CANCELLING, JobStatus.EXPIRING})  # no row is computed any more
OPEN = "status IN ('validating', 'running', 'paused', 'finalizing', 'cancelling', 'expiring')"


class ShardStatus(enum.StrEnum):
    PENDING = "pending"
    RUNNING = "running"
    DONE = "done"
    CANCELLED = "cancelled"
    FAILED = "failed"


def tenant_column() -> Mapped[str]:
    """The tenant that a row belongs to; nobody else is told that it exists."""
    return mapped_column(String(63), ForeignKey(Tenant.name), server_default=text(f"'{DEFAULT}'"))


class Job(Base):
    __tablename__ = "jobs"

    id: Mapped[str] = mapped_column(String(40), primary_key=True)
    status: Mapped[JobStatus] = mapped_column(text_enum(JobStatus), default=JobStatus.VALIDATING)
    tenant: Mapped[str] = tenant_column()
    spec: Mapped[dict[str, Any]] = mapped_column(JSON)
    idempotency_key: Mapped[str | None] = mapped_column(String(255))
    output_uri: Mapped[str] = mapped_column(String(4096))
    num_rows: Mapped[int] = mapped_column(BigInteger)
    input_version: Mapped[str | None] = mapped_column(String(64))  # Dataset.version at the submission
    # Estimated when it was submitted, where the tenant has a quota of tokens (db.quotas).
    num_tokens: Mapped[int] = mapped_column(BigInteger, default=0, server_default=text("0"))
    # What split learnt and every attempt must see alike: the label prior, for example. None until split has run.
    prepared: Mapped[dict[str, Any] | None] = mapped_column(JSON)
    # Totals over done shards; the progress of running shards is on the shard rows.
    num_shards: Mapped[int | None] = mapped_column(Integer)
    shards_done: Mapped[int] = mapped_column(Integer, default=0)
    rows_succeeded: Mapped[int] = mapped_column(BigInteger, default=0)
    rows_failed: Mapped[int] = mapped_column(BigInteger, default=0)
    prompt_tokens: Mapped[int] = mapped_column(BigInteger, default=0)
    cached_tokens: Mapped[int] = mapped_column(BigInteger, default=0)
    output_tokens: Mapped[int] = mapped_column(BigInteger, default=0)
    # Of all shards and of done ones: bytes of the columns that are read; 0: not known (db.lengths).
    input_bytes: Mapped[int] = mapped_column(BigInteger, default=0, server_default=text("0"))
    bytes_done: Mapped[int] = mapped_column(BigInteger, default=0, server_default=text("0"))
    error_code: Mapped[str | None] = mapped_column(String(64))
    error_message: Mapped[str | None] = mapped_column(String(4096))
    created_at: Mapped[float]
    # Taken up by split, which loads the model; and by the first shard, from which on rows are done.
    started_at: Mapped[float | None]
    running_at: Mapped[float | None]
    resumed_at: Mapped[float | None]  # after its last pause
    finished_at: Mapped[float | None]
    # When split or merge was last sent; 0: not since it became due. Lease, fence and attempts are of the split or merge
    # under way; after a broken attempt the lease is the pause before the next one.
    dispatched_at: Mapped[float] = mapped_column(default=0.0)
    lease_until: Mapped[float | None]
    fence: Mapped[int] = mapped_column(Integer, default=0, server_default=text("0"))
    attempts: Mapped[int] = mapped_column(Integer, default=0)
    priority: Mapped[int] = mapped_column(Integer, default=0, server_default=text("0"))
    expires_at: Mapped[float | None]
    retry_of: Mapped[str | None] = mapped_column(String(40))  # the job whose failed rows are the input

    __table_args__ = (
        CheckConstraint("num_rows >= 0", name="rows_not_negative"),
        CheckConstraint("rows_succeeded + rows_failed <= num_rows", name="rows_add_up"),
        UniqueConstraint("tenant", "idempotency_key", name="jobs_idempotency_keys"),
        Index("jobs_by_age", "tenant", "created_at", "id"),
        Index("jobs_sent", "status", "dispatched_at"),  # of which every sweep counts those that wait for their split
        # Two jobs must not write into one folder; it is free again once the first has ended.
        Index("jobs_open_outputs", "output_uri", unique=True, sqlite_where=text(OPEN), postgresql_where=text(OPEN)),
    )


class Shard(Base):
    """Rows [start_row, stop_row) of one input file; `first_row` is the job-wide index of the first of them."""

    __tablename__ = "shards"

    id: Mapped[int] = mapped_column(BigId, primary_key=True, autoincrement=True)
    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id", ondelete="CASCADE"))
    index: Mapped[int] = mapped_column(Integer)
    file: Mapped[str] = mapped_column(String(4096))
    file_version: Mapped[str | None] = mapped_column(String(255))  # at the split: another one is another file
    start_row: Mapped[int] = mapped_column(BigInteger)
    stop_row: Mapped[int] = mapped_column(BigInteger)
    first_row: Mapped[int] = mapped_column(BigInteger)
    input_bytes: Mapped[int] = mapped_column(BigInteger, default=0, server_default=text("0"))
    status: Mapped[ShardStatus] = mapped_column(text_enum(ShardStatus), default=ShardStatus.PENDING)
    # The lease: `fence` grows with every claim, and only its holder may write. 0: the shard was never begun.
    fence: Mapped[int] = mapped_column(Integer, default=0)
    attempts: Mapped[int] = mapped_column(Integer, default=0)  # since the last one that got on
    # Length of the shard's checkpoints when last looked at; a pause after a broken attempt.
    marks: Mapped[int] = mapped_column(Integer, default=0, server_default=text("0"))
    not_before: Mapped[float] = mapped_column(default=0.0, server_default=text("0"))
    owner: Mapped[str | None] = mapped_column(String(255))
    lease_until: Mapped[float | None]
    # When its message was last sent; 0: not since it became pending.
    dispatched_at: Mapped[float] = mapped_column(default=0.0)
    # Progress while running, final counts once done.
    rows_succeeded: Mapped[int] = mapped_column(BigInteger, default=0)
    rows_failed: Mapped[int] = mapped_column(BigInteger, default=0)
    prompt_tokens: Mapped[int] = mapped_column(BigInteger, default=0)
    cached_tokens: Mapped[int] = mapped_column(BigInteger, default=0)
    output_tokens: Mapped[int] = mapped_column(BigInteger, default=0)
    part: Mapped[str | None] = mapped_column(String(255))  # file name inside the output folder
    part_bytes: Mapped[int | None] = mapped_column(BigInteger)
    part_sha256: Mapped[str | None] = mapped_column(String(64))
    counters: Mapped[dict[str, Any] | None] = mapped_column(JSON)  # of the engine, while the shard was at work
    error_code: Mapped[str | None] = mapped_column(String(64))
    error_message: Mapped[str | None] = mapped_column(String(4096))

    __table_args__ = (
        UniqueConstraint("job_id", "index"),
        CheckConstraint("start_row <= stop_row", name="rows_in_order"),
        CheckConstraint("rows_succeeded + rows_failed <= stop_row - start_row", name="shard_rows_add_up"),
        Index("shards_of_job", "job_id", "status", "dispatched_at", "index"),
    )


class Upload(Base):
    """A Parquet file that a client sent. Its bytes lie in the tenant's uploads folder under the id."""

    __tablename__ = "uploads"

    id: Mapped[str] = mapped_column(String(40), primary_key=True)
    tenant: Mapped[str] = tenant_column()
    filename: Mapped[str] = mapped_column(String(1024))
    num_bytes: Mapped[int] = mapped_column(BigInteger)
    num_rows: Mapped[int] = mapped_column(BigInteger)
    created_at: Mapped[float]


class Worker(Base):
    """A worker process as it last reported itself. Informative only: leases decide who may work."""

    __tablename__ = "workers"

    name: Mapped[str] = mapped_column(String(255), primary_key=True)
    model: Mapped[str | None] = mapped_column(String(4096))
    started_at: Mapped[float]
    seen_at: Mapped[float]
    stats: Mapped[dict[str, Any]] = mapped_column(JSON, default=dict)
