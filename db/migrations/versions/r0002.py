"""When a job's first shard began, and what the engine did while a shard was at work."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    op.add_column("jobs", sa.Column("running_at", sa.Float(53)))
    op.add_column("shards", sa.Column("counters", sa.JSON))


def downgrade() -> None:
    op.drop_column("shards", "counters")
    op.drop_column("jobs", "running_at")
