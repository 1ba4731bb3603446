"""The OpenAI face: files, uploads, batches; webhooks and their deliveries."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    _files()
    _batches()
    _webhooks()


def downgrade() -> None:
    for name in ("webhook_deliveries", "webhooks", "openai_batches", "openai_parts", "openai_uploads", "openai_files"):
        op.drop_table(name)


def _text(name: str, length: int, nullable: bool = False) -> sa.Column[str]:
    return sa.Column(name, sa.String(length), nullable=nullable)


def _tenant() -> sa.Column[str]:
    return sa.Column("tenant", sa.String(63), sa.ForeignKey("tenants.name"), nullable=False)


def _time(name: str, nullable: bool = False) -> sa.Column[float]:
    return sa.Column(name, sa.Float(53), nullable=nullable)


def _key() -> sa.Column[str]:
    return sa.Column("id", sa.String(40), primary_key=True)


def _files() -> None:
    op.create_table(
        "openai_files", _key(), _tenant(), _text("filename", 1024), _text("purpose", 32),
        sa.Column("num_bytes", sa.BigInteger, nullable=False), _text("batch_id", 40, True),
        _time("created_at"), _time("expires_at", True),
    )  # fmt: skip
    op.create_index("openai_files_by_age", "openai_files", ["tenant", "created_at", "id"])
    op.create_table(
        "openai_uploads", _key(), _tenant(), _text("filename", 1024), _text("mime_type", 255),
        _text("purpose", 32), sa.Column("num_bytes", sa.BigInteger, nullable=False), _text("status", 16),
        _text("file_id", 40, True), sa.Column("file_expires_seconds", sa.Integer),
        _time("created_at"), _time("expires_at"),
    )  # fmt: skip
    op.create_table(
        "openai_parts", _key(),
        sa.Column("upload_id", sa.String(40), sa.ForeignKey("openai_uploads.id", ondelete="CASCADE"), nullable=False),
        sa.Column("num_bytes", sa.BigInteger, nullable=False), _time("created_at"),
    )  # fmt: skip
    op.create_index("openai_parts_of_upload", "openai_parts", ["upload_id"])


def _batches() -> None:
    op.create_table(
        "openai_batches", _key(), _tenant(), _text("status", 16), _text("endpoint", 64),
        _text("model", 4096, True), _text("input_file_id", 40), _text("completion_window", 16),
        sa.Column("labels", sa.JSON), sa.Column("output_expires_seconds", sa.Integer),
        _text("idempotency_key", 255, True), _text("job_id", 40, True), _text("output_file_id", 40),
        _text("error_file_id", 40), sa.Column("output_lines", sa.BigInteger), sa.Column("error_lines", sa.BigInteger),
        sa.Column("errors", sa.JSON), _time("created_at"), _time("expires_at"), _time("finalizing_at", True),
        _time("cancelling_at", True), _time("ended_at", True), _time("lease_until", True),
        sa.Column("fence", sa.Integer, nullable=False, server_default=sa.text("0")),
        sa.UniqueConstraint("tenant", "idempotency_key"),
    )  # fmt: skip
    op.create_index("openai_batches_by_age", "openai_batches", ["tenant", "created_at", "id"])
    op.create_index("openai_batches_by_status", "openai_batches", ["status"])
    op.create_index("openai_batches_by_job", "openai_batches", ["job_id"])


def _webhooks() -> None:
    op.create_table(
        "webhooks", _key(), _tenant(), _text("url", 2048), _text("secret", 128),
        sa.Column("events", sa.JSON, nullable=False), sa.Column("enabled", sa.Boolean, nullable=False),
        _time("created_at"),
    )  # fmt: skip
    op.create_index("webhooks_of_tenant", "webhooks", ["tenant"])
    big = sa.BigInteger().with_variant(sa.Integer, "sqlite")
    op.create_table(
        "webhook_deliveries", sa.Column("id", big, primary_key=True, autoincrement=True),
        sa.Column("webhook_id", sa.String(40), sa.ForeignKey("webhooks.id", ondelete="CASCADE"), nullable=False),
        _text("event_id", 40), _text("type", 32), _text("object_id", 40), _text("status", 16),
        sa.Column("attempts", sa.Integer, nullable=False), _time("next_at"),
        sa.Column("response_status", sa.Integer), _text("error", 1024, True), _time("created_at"),
        _time("delivered_at", True), sa.UniqueConstraint("webhook_id", "event_id"),
        sa.CheckConstraint("status IN ('pending', 'delivered', 'failed')", name="delivery_status"),
    )  # fmt: skip
    op.create_index("webhook_deliveries_due", "webhook_deliveries", ["status", "next_at"])
