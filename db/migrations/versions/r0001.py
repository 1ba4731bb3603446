"""First tables: jobs, shards, uploads, workers."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None

OPEN = sa.text("status IN ('validating', 'running', 'finalizing', 'cancelling')")
JOB_STATUSES = (
    "validating",
    "running",
    "finalizing",
    "cancelling",
    "completed",
    "completed_with_errors",
    "failed",
    "cancelled",
)
SHARD_STATUSES = ("pending", "running", "done", "cancelled", "failed")


def upgrade() -> None:
    _create_jobs()
    _create_shards()
    op.create_table(
        "uploads",
        sa.Column("id", sa.String(40), primary_key=True),
        sa.Column("filename", sa.String(1024), nullable=False),
        sa.Column("num_bytes", sa.BigInteger, nullable=False),
        sa.Column("num_rows", sa.BigInteger, nullable=False),
        sa.Column("created_at", sa.Float(53), nullable=False),
    )
    op.create_table(
        "workers",
        sa.Column("name", sa.String(255), primary_key=True),
        sa.Column("model", sa.String(4096)),
        sa.Column("started_at", sa.Float(53), nullable=False),
        sa.Column("seen_at", sa.Float(53), nullable=False),
        sa.Column("stats", sa.JSON, nullable=False),
    )


def downgrade() -> None:
    for table in ("workers", "uploads", "shards", "jobs"):
        op.drop_table(table)


def _status(name: str, values: tuple[str, ...]) -> sa.Column[str]:
    kind = sa.Enum(*values, name=name, native_enum=False, create_constraint=True, length=32)
    return sa.Column("status", kind, nullable=False)


def _counts() -> tuple[sa.Column[int], ...]:
    names = ("rows_succeeded", "rows_failed", "prompt_tokens", "cached_tokens", "output_tokens")
    return tuple(sa.Column(name, sa.BigInteger, nullable=False) for name in names)


def _create_jobs() -> None:
    op.create_table(
        "jobs",
        sa.Column("id", sa.String(40), primary_key=True),
        _status("jobstatus", JOB_STATUSES),
        sa.Column("spec", sa.JSON, nullable=False),
        sa.Column("idempotency_key", sa.String(255), unique=True),
        sa.Column("output_uri", sa.String(4096), nullable=False),
        sa.Column("num_rows", sa.BigInteger, nullable=False),
        sa.Column("prepared", sa.JSON),
        sa.Column("num_shards", sa.Integer),
        sa.Column("shards_done", sa.Integer, nullable=False),
        *_counts(),
        sa.Column("error_code", sa.String(64)),
        sa.Column("error_message", sa.String(4096)),
        sa.Column("created_at", sa.Float(53), nullable=False),
        sa.Column("started_at", sa.Float(53)),
        sa.Column("finished_at", sa.Float(53)),
        sa.Column("dispatched_at", sa.Float(53), nullable=False),
        sa.Column("lease_until", sa.Float(53)),
        sa.Column("attempts", sa.Integer, nullable=False),
        sa.CheckConstraint("num_rows >= 0", name="rows_not_negative"),
        sa.CheckConstraint("rows_succeeded + rows_failed <= num_rows", name="rows_add_up"),
    )
    op.create_index("jobs_by_age", "jobs", ["created_at", "id"])
    op.create_index("jobs_by_status", "jobs", ["status"])
    op.create_index("jobs_open_outputs", "jobs", ["output_uri"], unique=True, sqlite_where=OPEN, postgresql_where=OPEN)


def _create_shards() -> None:
    op.create_table(
        "shards",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), primary_key=True, autoincrement=True),
        sa.Column("job_id", sa.String(40), sa.ForeignKey("jobs.id", ondelete="CASCADE"), nullable=False),
        sa.Column("index", sa.Integer, nullable=False),
        sa.Column("file", sa.String(4096), nullable=False),
        sa.Column("start_row", sa.BigInteger, nullable=False),
        sa.Column("stop_row", sa.BigInteger, nullable=False),
        sa.Column("first_row", sa.BigInteger, nullable=False),
        _status("shardstatus", SHARD_STATUSES),
        sa.Column("fence", sa.Integer, nullable=False),
        sa.Column("attempts", sa.Integer, nullable=False),
        sa.Column("owner", sa.String(255)),
        sa.Column("lease_until", sa.Float(53)),
        sa.Column("dispatched_at", sa.Float(53), nullable=False),
        *_counts(),
        sa.Column("part", sa.String(255)),
        sa.Column("part_bytes", sa.BigInteger),
        sa.Column("part_sha256", sa.String(64)),
        sa.Column("error_code", sa.String(64)),
        sa.Column("error_message", sa.String(4096)),
        sa.UniqueConstraint("job_id", "index"),
        sa.CheckConstraint("start_row <= stop_row", name="rows_in_order"),
        sa.CheckConstraint("rows_succeeded + rows_failed <= stop_row - start_row", name="shard_rows_add_up"),
    )
    op.create_index("shards_of_job", "shards", ["job_id", "status", "dispatched_at", "index"])
