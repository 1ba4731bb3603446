"""The tables of who may do what, and who did: tenants, API keys, audit log. See db.tenants, db.keys and db.audit."""

from __future__ import annotations

import enum
from typing import Any

from sqlalchemy import JSON, BigInteger, ForeignKey, Index, String, select, text
from sqlalchemy.orm import Mapped, mapped_column

from db.base import Base, BigId, text_enum

DEFAULT = "default"  # the tenant of an installation without keys, and of the operator's


class Role(enum.StrEnum):
    """What a key may do. Each role may do all that the ones before it may."""

    READ = "read"  # look at jobs, files and results of its tenant
    SUBMIT = "submit"  # upload, submit, pause, resume, cancel, retry
    ADMIN = "admin"  # make and revoke the tenant's keys; of the tenant `default`: manage all tenants

    def allows(self, needed: Role) -> bool:
        order = list(Role)
        return order.index(self) >= order.index(needed)


class Tenant(Base):
    """Whoever shares jobs, files and schedules. `roots` are the operator's folders for its datasets."""

    __tablename__ = "tenants"

    name: Mapped[str] = mapped_column(String(63), primary_key=True)
    roots: Mapped[list[Any]] = mapped_column(JSON)
    created_at: Mapped[float]
    disabled_at: Mapped[float | None]  # its keys are refused from then on
    # Quotas; none: no limit. Over its open jobs: rows not done yet, and tokens as estimated at submission.
    max_queued_rows: Mapped[int | None] = mapped_column(BigInteger)
    max_queued_tokens: Mapped[int | None] = mapped_column(BigInteger)
    max_running_jobs: Mapped[int | None]  # those beyond it wait


DISABLED = select(Tenant.name).where(Tenant.disabled_at.is_not(None))


class ApiKey(Base):
    """A key as it is kept: never itself, only its digest. `prefix` is how people tell keys apart."""

    __tablename__ = "api_keys"

    id: Mapped[str] = mapped_column(String(40), primary_key=True)
    tenant: Mapped[str] = mapped_column(String(63), ForeignKey(Tenant.name))
    name: Mapped[str] = mapped_column(String(255))
    prefix: Mapped[str] = mapped_column(String(16))
    digest: Mapped[str] = mapped_column(String(64), unique=True)
    role: Mapped[Role] = mapped_column(text_enum(Role))
    created_at: Mapped[float]
    expires_at: Mapped[float | None]
    revoked_at: Mapped[float | None]
    used_at: Mapped[float | None]  # to the minute
    # The bucket of submissions: how many it held at that moment. It fills up by the minute; see db.rates.
    submissions: Mapped[float] = mapped_column(default=0.0, server_default=text("0"))
    submissions_at: Mapped[float] = mapped_column(default=0.0, server_default=text("0"))

    __table_args__ = (Index("api_keys_of_tenant", "tenant", "created_at"),)


class AuditEntry(Base):
    """Something that somebody did. Never changed, never deleted; so it refers to nothing that might be."""

    __tablename__ = "audit"

    id: Mapped[int] = mapped_column(BigId, primary_key=True, autoincrement=True)
    at: Mapped[float]
    tenant: Mapped[str] = mapped_column(String(63))
    key_id: Mapped[str | None] = mapped_column(String(40))
    address: Mapped[str] = mapped_column(String(255))
    action: Mapped[str] = mapped_column(String(64))
    thing: Mapped[str] = mapped_column(String(255))
    details: Mapped[dict[str, Any]] = mapped_column(JSON)

    __table_args__ = (Index("audit_of_tenant", "tenant", "id"),)
