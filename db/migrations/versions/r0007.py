"""Versions of a job's input and of each shard's file: what changes under a job is noticed."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"


def upgrade() -> None:
    op.add_column("jobs", sa.Column("input_version", sa.String(64)))
    op.add_column("shards", sa.Column("file_version", sa.String(255)))


def downgrade() -> None:
    op.drop_column("shards", "file_version")
    op.drop_column("jobs", "input_version")
