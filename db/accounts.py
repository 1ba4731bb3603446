"""The tables of who may do what: tenants and their API keys. Transitions are in db.tenants and db.keys."""

from __future__ import annotations

import enum
from typing import Any

from sqlalchemy import JSON, ForeignKey, Index, String
from sqlalchemy.orm import Mapped, mapped_column

from db.base import Base, text_enum

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

    __table_args__ = (Index("api_keys_of_tenant", "tenant", "created_at"),)
