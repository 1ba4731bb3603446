"""Quotas, rates and the audit log, which the database itself keeps from being changed."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"

QUOTAS = (("max_queued_rows", sa.BigInteger), ("max_queued_tokens", sa.BigInteger), ("max_running_jobs", sa.BigInteger))
REFUSAL = "entries of the audit log are neither changed nor deleted"


def upgrade() -> None:
    for name, kind in QUOTAS:
        op.add_column("tenants", sa.Column(name, kind))
    for name in ("submissions", "submissions_at"):
        op.add_column("api_keys", sa.Column(name, sa.Float(53), nullable=False, server_default=sa.text("0")))
    op.add_column("jobs", sa.Column("num_tokens", sa.BigInteger, nullable=False, server_default=sa.text("0")))
    op.create_table(
        "audit",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), primary_key=True, autoincrement=True),
        sa.Column("at", sa.Float(53), nullable=False),
        sa.Column("tenant", sa.String(63), nullable=False),
        sa.Column("key_id", sa.String(40)),
        sa.Column("address", sa.String(255), nullable=False),
        sa.Column("action", sa.String(64), nullable=False),
        sa.Column("thing", sa.String(255), nullable=False),
        sa.Column("details", sa.JSON, nullable=False),
    )
    op.create_index("audit_of_tenant", "audit", ["tenant", "id"])
    if op.get_bind().dialect.name == "postgresql":
        op.execute(
            "CREATE FUNCTION audit_is_append_only() RETURNS trigger LANGUAGE plpgsql AS "
            f"$$ BEGIN RAISE EXCEPTION '{REFUSAL}'; END $$"
        )
        op.execute(
            "CREATE TRIGGER audit_append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON audit "
            "FOR EACH STATEMENT EXECUTE FUNCTION audit_is_append_only()"
        )
    else:
        for change in ("UPDATE", "DELETE"):
            op.execute(
                f"CREATE TRIGGER audit_no_{change.lower()} BEFORE {change} ON audit "
                f"BEGIN SELECT RAISE(ABORT, '{REFUSAL}'); END"
            )


def downgrade() -> None:
    op.drop_table("audit")
    if op.get_bind().dialect.name == "postgresql":
        op.execute("DROP FUNCTION audit_is_append_only")
    op.drop_column("jobs", "num_tokens")
    for name in ("submissions_at", "submissions"):
        op.drop_column("api_keys", name)
    for name, _ in reversed(QUOTAS):
        op.drop_column("tenants", name)
