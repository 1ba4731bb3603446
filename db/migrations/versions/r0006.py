"""Schedules and their runs."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"

DEFAULT = sa.text("'default'")
TRIGGERS = ("schedule", "backfill", "manual")
STATUSES = ("waiting", "started", "skipped", "failed")


def upgrade() -> None:
    op.create_table(
        "schedules",
        sa.Column("id", sa.String(40), primary_key=True),
        sa.Column("tenant", sa.String(63), sa.ForeignKey("tenants.name"), nullable=False, server_default=DEFAULT),
        sa.Column("name", sa.String(128), nullable=False),
        sa.Column("spec", sa.JSON, nullable=False),
        sa.Column("paused", sa.Boolean, nullable=False, server_default=sa.false()),
        sa.Column("next_at", sa.Float(53)),
        sa.Column("created_at", sa.Float(53), nullable=False),
        sa.UniqueConstraint("tenant", "name"),
    )
    op.create_index("schedules_by_next", "schedules", ["next_at"])
    op.create_table(
        "schedule_runs",
        sa.Column("id", sa.String(40), primary_key=True),
        sa.Column("schedule_id", sa.String(40), sa.ForeignKey("schedules.id", ondelete="CASCADE"), nullable=False),
        sa.Column("fire_at", sa.Float(53), nullable=False),
        sa.Column("trigger", _enum("trigger", TRIGGERS), nullable=False),
        sa.Column("status", _enum("runstatus", STATUSES), nullable=False),
        sa.Column("reason", sa.String(4096)),
        sa.Column("job_id", sa.String(40), sa.ForeignKey("jobs.id", ondelete="SET NULL")),
        sa.Column("created_at", sa.Float(53), nullable=False),
        sa.Column("try_at", sa.Float(53), nullable=False, server_default=sa.text("0")),
        sa.Column("failing_since", sa.Float(53)),
        sa.Column("parallel", sa.Integer, nullable=False, server_default=sa.text("1")),
        sa.Column("window_until", sa.Float(53)),
        sa.Column("window_paused", sa.Boolean, nullable=False, server_default=sa.false()),
        sa.Column("rows_input", sa.BigInteger),
        sa.Column("rows_skipped", sa.BigInteger),
        sa.UniqueConstraint("schedule_id", "fire_at"),
    )
    op.create_index("schedule_runs_by_job", "schedule_runs", ["job_id"])
    op.create_index("schedule_runs_waiting", "schedule_runs", ["status", "try_at"])


def downgrade() -> None:
    op.drop_table("schedule_runs")
    op.drop_table("schedules")


def _enum(name: str, values: tuple[str, ...]) -> sa.Enum:
    return sa.Enum(*values, native_enum=False, length=32, create_constraint=True, name=name)
