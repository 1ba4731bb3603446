"""An index for what every sweep asks of the jobs that wait for their split: how many were sent, and which were not."""

from __future__ import annotations

from alembic import op

revision = "0010"
down_revision = "0009"


def upgrade() -> None:
    op.drop_index("jobs_by_status", "jobs")
    op.create_index("jobs_sent", "jobs", ["status", "dispatched_at"])


def downgrade() -> None:
    op.drop_index("jobs_sent", "jobs")
    op.create_index("jobs_by_status", "jobs", ["status"])
