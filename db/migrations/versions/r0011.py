"""Dry runs: what a job will take, before it is submitted."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"

STATUSES = ("waiting", "running", "done", "failed")


def upgrade() -> None:
    status = sa.Enum(*STATUSES, name="dryrunstatus", native_enum=False, length=32, create_constraint=True)
    op.create_table(
        "dry_runs",
        sa.Column("id", sa.String(40), primary_key=True),
        sa.Column(
            "tenant", sa.String(63), sa.ForeignKey("tenants.name"), nullable=False, server_default=sa.text("'default'")
        ),
        sa.Column("spec", sa.JSON, nullable=False),
        sa.Column("sample_rows", sa.Integer, nullable=False),
        sa.Column("num_rows", sa.BigInteger, nullable=False),
        sa.Column("input_version", sa.String(64), nullable=False),
        sa.Column("status", status, nullable=False),
        sa.Column("rows_done", sa.Integer, nullable=False),
        sa.Column("result", sa.JSON),
        sa.Column("error_code", sa.String(64)),
        sa.Column("error_message", sa.String(4096)),
        sa.Column("created_at", sa.Float(53), nullable=False),
        sa.Column("started_at", sa.Float(53)),
        sa.Column("finished_at", sa.Float(53)),
        sa.Column("dispatched_at", sa.Float(53), nullable=False),
        sa.Column("lease_until", sa.Float(53)),
        sa.Column("fence", sa.Integer, nullable=False),
        sa.Column("attempts", sa.Integer, nullable=False),
    )
    op.create_index("dry_runs_sent", "dry_runs", ["status", "dispatched_at"])


def downgrade() -> None:
    op.drop_table("dry_runs")
