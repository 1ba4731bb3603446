"""Windows: how long a job's rows took, at which time."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"


def upgrade() -> None:
    op.create_table(
        "job_windows",
        sa.Column("job_id", sa.String(40), sa.ForeignKey("jobs.id", ondelete="CASCADE"), primary_key=True),
        sa.Column("index", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("seconds", sa.BigInteger, nullable=False),
        sa.Column("histograms", sa.JSON, nullable=False),
    )


def downgrade() -> None:
    op.drop_table("job_windows")
