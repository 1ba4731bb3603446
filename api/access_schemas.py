"""Request and response models of keys, tenants and the audit log. Unknown fields of a request are refused."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Any

from pydantic import Field

from api.schemas import View
from db.accounts import ApiKey, AuditEntry, Role, Tenant
from db.spec_fields import Spec

Limit = Annotated[int, Field(ge=0, lt=2**63)] | None
YEARS = 100 * 366 * 86_400


class KeyRequest(Spec):
    name: Annotated[str, Field(min_length=1, max_length=255, description="What the key is for, in words.")]
    role: Role = Field(description="What it may do.")
    tenant: Annotated[str, Field(max_length=63)] | None = Field(
        default=None, description="Whose key it will be; none: the caller's own tenant."
    )
    expires_seconds: float | None = Field(default=None, gt=0, le=YEARS, description="Its life from now on.")


class KeyView(View):
    """A key without what it is sent as; `prefix` is how that begins."""

    id: str
    tenant: str
    name: str
    prefix: str
    role: Role
    created_at: datetime
    expires_at: datetime | None
    revoked_at: datetime | None
    used_at: datetime | None

    @classmethod
    def of(cls, key: ApiKey) -> KeyView:
        return cls(
            id=key.id,
            tenant=key.tenant,
            name=key.name,
            prefix=key.prefix,
            role=key.role,
            created_at=_time(key.created_at),
            expires_at=None if key.expires_at is None else _time(key.expires_at),
            revoked_at=None if key.revoked_at is None else _time(key.revoked_at),
            used_at=None if key.used_at is None else _time(key.used_at),
        )


class KeyCreated(View):
    """`secret` is what a client sends. It is shown here and never again."""

    key: KeyView
    secret: str


class KeyList(View):
    keys: list[KeyView]


class TenantChange(Spec):
    """Quotas over a tenant's open jobs; null: no limit."""

    max_queued_rows: Limit = Field(default=None, description="Rows in no finished part yet.")
    max_queued_tokens: Limit = Field(default=None, description="Of prompts and answers, as estimated at submission.")
    max_running_jobs: Limit = Field(default=None, description="Jobs beyond it wait.")
    disabled: bool = Field(default=False, description="Its keys are refused; its jobs go on.")


class TenantRequest(TenantChange):
    name: Annotated[str, Field(max_length=63)] = Field(description="Lower-case letters, digits, `-` and `_`.")


class TenantView(View):
    name: str
    roots: list[str]
    max_queued_rows: int | None
    max_queued_tokens: int | None
    max_running_jobs: int | None
    created_at: datetime
    disabled_at: datetime | None

    @classmethod
    def of(cls, tenant: Tenant) -> TenantView:
        return cls(
            name=tenant.name,
            roots=tenant.roots,
            max_queued_rows=tenant.max_queued_rows,
            max_queued_tokens=tenant.max_queued_tokens,
            max_running_jobs=tenant.max_running_jobs,
            created_at=_time(tenant.created_at),
            disabled_at=None if tenant.disabled_at is None else _time(tenant.disabled_at),
        )


class TenantList(View):
    tenants: list[TenantView]


class AuditView(View):
    """`action` was done to `thing` by whoever had the key, from the address."""

    id: int
    at: datetime
    tenant: str
    key_id: str | None
    address: str
    action: str
    thing: str
    details: dict[str, Any]

    @classmethod
    def of(cls, entry: AuditEntry) -> AuditView:
        return cls(
            id=entry.id,
            at=_time(entry.at),
            tenant=entry.tenant,
            key_id=entry.key_id,
            address=entry.address,
            action=entry.action,
            thing=entry.thing,
            details=entry.details,
        )


class AuditPage(View):
    """Newest first. `next` goes into the next request's `before`; none at the end."""

    entries: list[AuditView]
    next: int | None


def _time(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, tz=UTC)
