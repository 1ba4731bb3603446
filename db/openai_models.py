"""The tables behind the OpenAI face: files, uploads in parts, batches; and webhooks with their deliveries.

A batch is a job seen by the OpenAI contract. What a job says itself (counts, times, its status) is not stored again:
the row here has what the job does not know, and how the batch ended once its files are there.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any

from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    CheckConstraint,
    ForeignKey,
    Index,
    Integer,
    String,
    UniqueConstraint,
    text,
)
from sqlalchemy.orm import Mapped, mapped_column

from db.accounts import Tenant
from db.base import Base, BigId


class BatchStatus(StrEnum):
    """How far the batch's own row is. The last four are terminal."""

    VALIDATING = "validating"  # its file is being checked; there is no job yet
    RUNNING = "running"  # the job says the rest
    COMPLETED = "completed"
    FAILED = "failed"
    EXPIRED = "expired"
    CANCELLED = "cancelled"

    @property
    def terminal(self) -> bool:
        return self not in (BatchStatus.VALIDATING, BatchStatus.RUNNING)


def _id() -> Mapped[str]:
    return mapped_column(String(40), primary_key=True)


def _tenant() -> Mapped[str]:
    return mapped_column(String(63), ForeignKey(Tenant.name))


class OpenAIFile(Base):
    """A file a client sent, whose bytes lie in the files folder; or an output of a batch, written when it is read."""

    __tablename__ = "openai_files"

    id: Mapped[str] = _id()
    tenant: Mapped[str] = _tenant()
    filename: Mapped[str] = mapped_column(String(1024))
    purpose: Mapped[str] = mapped_column(String(32))
    num_bytes: Mapped[int] = mapped_column(BigInteger)
    batch_id: Mapped[str | None] = mapped_column(String(40))
    created_at: Mapped[float]
    expires_at: Mapped[float | None]

    __table_args__ = (Index("openai_files_by_age", "tenant", "created_at", "id"),)


class OpenAIUpload(Base):
    """A file that comes in parts. `status`: pending, completed, cancelled, expired."""

    __tablename__ = "openai_uploads"

    id: Mapped[str] = _id()
    tenant: Mapped[str] = _tenant()
    filename: Mapped[str] = mapped_column(String(1024))
    mime_type: Mapped[str] = mapped_column(String(255))
    purpose: Mapped[str] = mapped_column(String(32))
    num_bytes: Mapped[int] = mapped_column(BigInteger)
    status: Mapped[str] = mapped_column(String(16))
    file_id: Mapped[str | None] = mapped_column(String(40))
    file_expires_seconds: Mapped[int | None] = mapped_column(Integer)
    created_at: Mapped[float]
    expires_at: Mapped[float]


class OpenAIPart(Base):
    __tablename__ = "openai_parts"

    id: Mapped[str] = _id()
    upload_id: Mapped[str] = mapped_column(ForeignKey("openai_uploads.id", ondelete="CASCADE"))
    num_bytes: Mapped[int] = mapped_column(BigInteger)
    created_at: Mapped[float]

    __table_args__ = (Index("openai_parts_of_upload", "upload_id"),)


class Batch(Base):
    __tablename__ = "openai_batches"

    id: Mapped[str] = _id()
    tenant: Mapped[str] = _tenant()
    status: Mapped[str] = mapped_column(String(16))
    endpoint: Mapped[str] = mapped_column(String(64))
    model: Mapped[str | None] = mapped_column(String(4096))  # as the requests name it
    input_file_id: Mapped[str] = mapped_column(String(40))
    completion_window: Mapped[str] = mapped_column(String(16))
    labels: Mapped[dict[str, Any] | None] = mapped_column(JSON)  # the client's `metadata`
    output_expires_seconds: Mapped[int | None] = mapped_column(Integer)
    idempotency_key: Mapped[str | None] = mapped_column(String(255))
    job_id: Mapped[str | None] = mapped_column(String(40))
    # Known from the beginning, so that finished rows can be read early; told in the batch once it has ended.
    output_file_id: Mapped[str] = mapped_column(String(40))
    error_file_id: Mapped[str] = mapped_column(String(40))
    output_lines: Mapped[int | None] = mapped_column(BigInteger)
    error_lines: Mapped[int | None] = mapped_column(BigInteger)
    errors: Mapped[dict[str, Any] | None] = mapped_column(JSON)
    created_at: Mapped[float]
    expires_at: Mapped[float]
    finalizing_at: Mapped[float | None]
    cancelling_at: Mapped[float | None]
    ended_at: Mapped[float | None]
    # Of who checks the file or closes the batch; only the holder may write (see db.phases).
    lease_until: Mapped[float | None]
    fence: Mapped[int] = mapped_column(Integer, default=0, server_default=text("0"))

    __table_args__ = (
        UniqueConstraint("tenant", "idempotency_key"),
        Index("openai_batches_by_age", "tenant", "created_at", "id"),
        Index("openai_batches_by_status", "status"),
        Index("openai_batches_by_job", "job_id"),
    )


class Webhook(Base):
    """Where a tenant wants to hear of its jobs and batches. `secret` is the one that signs, as it was told once."""

    __tablename__ = "webhooks"

    id: Mapped[str] = _id()
    tenant: Mapped[str] = _tenant()
    url: Mapped[str] = mapped_column(String(2048))
    secret: Mapped[str] = mapped_column(String(128))
    events: Mapped[dict[str, Any]] = mapped_column(JSON)  # {"types": [...]}; empty: all
    enabled: Mapped[bool] = mapped_column(Boolean, default=True)
    created_at: Mapped[float]

    __table_args__ = (Index("webhooks_of_tenant", "tenant"),)


class Delivery(Base):
    """One event for one webhook, and how its delivery went. `status`: pending, delivered, failed."""

    __tablename__ = "webhook_deliveries"

    id: Mapped[int] = mapped_column(BigId, primary_key=True, autoincrement=True)
    webhook_id: Mapped[str] = mapped_column(ForeignKey("webhooks.id", ondelete="CASCADE"))
    event_id: Mapped[str] = mapped_column(String(40))
    type: Mapped[str] = mapped_column(String(32))
    object_id: Mapped[str] = mapped_column(String(40))
    status: Mapped[str] = mapped_column(String(16))
    attempts: Mapped[int] = mapped_column(Integer, default=0)
    next_at: Mapped[float]  # when it is due; while it is under way, when it counts as lost
    response_status: Mapped[int | None] = mapped_column(Integer)
    error: Mapped[str | None] = mapped_column(String(1024))
    created_at: Mapped[float]
    delivered_at: Mapped[float | None]

    __table_args__ = (
        UniqueConstraint("webhook_id", "event_id"),
        CheckConstraint("status IN ('pending', 'delivered', 'failed')", name="delivery_status"),
        Index("webhook_deliveries_due", "status", "next_at"),
    )
