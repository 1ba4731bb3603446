"""Alembic's entry point: runs the revisions on the connection that db.session.migrate hands over."""

from __future__ import annotations

from alembic import context

from db import dry_runs, models, openai_models, sample_models, schedule_models  # noqa: F401 - their tables, and what they refer to, join the metadata
from db.base import Base

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=Base.metadata,
    render_as_batch=True,  # SQLite alters a table by copying it
    transactional_ddl=True,
)
with context.begin_transaction():
    context.run_migrations()
