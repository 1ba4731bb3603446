"""Pause, deadline, priority and retry of jobs; pauses after broken attempts; fences of split and merge."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"

BEFORE = ("validating", "running", "finalizing", "cancelling")
AFTER = ("validating", "running", "paused", "finalizing", "cancelling", "expiring")
ENDS = ("completed", "completed_with_errors", "failed", "cancelled")


def upgrade() -> None:
    _statuses(AFTER, (*ENDS, "expired"))
    op.add_column("jobs", sa.Column("fence", sa.Integer, nullable=False, server_default=sa.text("0")))
    op.add_column("jobs", sa.Column("priority", sa.Integer, nullable=False, server_default=sa.text("0")))
    op.add_column("jobs", sa.Column("expires_at", sa.Float(53)))
    op.add_column("jobs", sa.Column("retry_of", sa.String(40)))
    op.add_column("shards", sa.Column("marks", sa.Integer, nullable=False, server_default=sa.text("0")))
    op.add_column("shards", sa.Column("not_before", sa.Float(53), nullable=False, server_default=sa.text("0")))


def downgrade() -> None:
    for table, names in (
        ("shards", ("not_before", "marks")),
        ("jobs", ("retry_of", "expires_at", "priority", "fence")),
    ):
        for name in names:
            op.drop_column(table, name)
    # What the old tables cannot say becomes what comes nearest to it.
    op.execute("UPDATE jobs SET status = 'running' WHERE status = 'paused'")
    op.execute("UPDATE jobs SET status = 'cancelling' WHERE status = 'expiring'")
    op.execute("UPDATE jobs SET status = 'cancelled' WHERE status = 'expired'")
    _statuses(BEFORE, ENDS)


def _statuses(open_: tuple[str, ...], ended: tuple[str, ...]) -> None:
    """Other values of jobs.status. SQLite copies the table for that; indexes on conditions are made anew."""
    op.drop_index("jobs_open_outputs", "jobs")
    with op.batch_alter_table("jobs") as table:
        table.drop_constraint("jobstatus", type_="check")
        table.create_check_constraint("jobstatus", f"status IN ({_quoted((*open_, *ended))})")
    condition = sa.text(f"status IN ({_quoted(open_)})")
    op.create_index(
        "jobs_open_outputs", "jobs", ["output_uri"], unique=True, sqlite_where=condition, postgresql_where=condition
    )


def _quoted(values: tuple[str, ...]) -> str:
    return ", ".join(f"'{value}'" for value in values)
