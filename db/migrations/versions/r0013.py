"""Lengths of inputs, and when a job was last resumed: what its end is estimated from."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"

COUNTS = (("jobs", "input_bytes"), ("jobs", "bytes_done"), ("shards", "input_bytes"), ("job_samples", "bytes"))


def upgrade() -> None:
    for table, name in COUNTS:
        op.add_column(table, sa.Column(name, sa.BigInteger, nullable=False, server_default=sa.text("0")))
    op.add_column("jobs", sa.Column("resumed_at", sa.Float(53)))


def downgrade() -> None:
    op.drop_column("jobs", "resumed_at")
    for table, name in reversed(COUNTS):
        op.drop_column(table, name)
