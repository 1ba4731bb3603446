"""Tenants, API keys, and whose a job or an upload is."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"

DEFAULT = sa.text("'default'")
OPEN = sa.text("status IN ('validating', 'running', 'paused', 'finalizing', 'cancelling', 'expiring')")
# The unique constraint of the first tables has no name on SQLite.
NAMES = {"uq": "%(table_name)s_%(column_0_name)s_key"}


def upgrade() -> None:
    _create_tenants()
    _create_keys()
    op.drop_index("jobs_by_age", "jobs")
    op.drop_index("jobs_open_outputs", "jobs")
    with op.batch_alter_table("jobs", naming_convention=NAMES) as table:
        table.drop_constraint("jobs_idempotency_key_key", type_="unique")
        table.add_column(_tenant())
        table.create_foreign_key("jobs_tenant_fkey", "tenants", ["tenant"], ["name"])
        table.create_unique_constraint("jobs_idempotency_keys", ["tenant", "idempotency_key"])
    op.create_index("jobs_by_age", "jobs", ["tenant", "created_at", "id"])
    op.create_index("jobs_open_outputs", "jobs", ["output_uri"], unique=True, sqlite_where=OPEN, postgresql_where=OPEN)
    with op.batch_alter_table("uploads") as table:
        table.add_column(_tenant())
        table.create_foreign_key("uploads_tenant_fkey", "tenants", ["tenant"], ["name"])


def downgrade() -> None:
    """Only the jobs and uploads of the tenant `default` can stay: the old tables would show everybody the others'."""
    op.execute("DELETE FROM uploads WHERE tenant <> 'default'")
    op.execute("DELETE FROM jobs WHERE tenant <> 'default'")
    with op.batch_alter_table("uploads") as table:
        table.drop_constraint("uploads_tenant_fkey", type_="foreignkey")
        table.drop_column("tenant")
    op.drop_index("jobs_by_age", "jobs")
    op.drop_index("jobs_open_outputs", "jobs")
    with op.batch_alter_table("jobs") as table:
        table.drop_constraint("jobs_idempotency_keys", type_="unique")
        table.drop_constraint("jobs_tenant_fkey", type_="foreignkey")
        table.drop_column("tenant")
        table.create_unique_constraint("jobs_idempotency_key_key", ["idempotency_key"])
    op.create_index("jobs_by_age", "jobs", ["created_at", "id"])
    op.create_index("jobs_open_outputs", "jobs", ["output_uri"], unique=True, sqlite_where=OPEN, postgresql_where=OPEN)
    op.drop_table("api_keys")
    op.drop_table("tenants")


def _tenant() -> sa.Column[str]:
    return sa.Column("tenant", sa.String(63), nullable=False, server_default=DEFAULT)


def _create_tenants() -> None:
    tenants = op.create_table(
        "tenants",
        sa.Column("name", sa.String(63), primary_key=True),
        sa.Column("roots", sa.JSON, nullable=False),
        sa.Column("created_at", sa.Float(53), nullable=False),
        sa.Column("disabled_at", sa.Float(53)),
    )
    op.bulk_insert(tenants, [{"name": "default", "roots": [], "created_at": 0.0}])


def _create_keys() -> None:
    role = sa.Enum("read", "submit", "admin", name="role", native_enum=False, create_constraint=True, length=32)
    op.create_table(
        "api_keys",
        sa.Column("id", sa.String(40), primary_key=True),
        sa.Column("tenant", sa.String(63), sa.ForeignKey("tenants.name"), nullable=False),
        sa.Column("name", sa.String(255), nullable=False),
        sa.Column("prefix", sa.String(16), nullable=False),
        sa.Column("digest", sa.String(64), nullable=False, unique=True),
        sa.Column("role", role, nullable=False),
        sa.Column("created_at", sa.Float(53), nullable=False),
        sa.Column("expires_at", sa.Float(53)),
        sa.Column("revoked_at", sa.Float(53)),
        sa.Column("used_at", sa.Float(53)),
    )
    op.create_index("api_keys_of_tenant", "api_keys", ["tenant", "created_at"])
