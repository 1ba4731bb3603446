"""API keys: made, found by what a client sends, listed and revoked. The caller owns the transaction.

A key is `nm_` and 256 random bits, shown once, when it is made. Only its SHA-256 is kept. A slow hash, as passwords
need it, would add nothing: it makes guessing dear where there is little to guess, and nobody guesses 256 bits; but it
would cost every request a tenth of a second, which strangers could make us spend. Looking a digest up by an index leaks
nothing either: whoever sends a key cannot choose what its digest begins with.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from dataclasses import dataclass

from sqlalchemy import or_, select, update
from sqlalchemy.orm import Session

from db.accounts import ApiKey, Role, Tenant
from db.errors import InvalidKey, KeyNotFound, TenantNotFound
from db.session import db_now

MARK = "nm_"
SECRET = re.compile(r"nm_[A-Za-z0-9_-]{43}")
PREFIX_LENGTH = 11  # 48 of the 256 random bits: enough to tell keys apart, and 208 are left
USED_SECONDS = 60.0  # how exact `used_at` is; writing it with every request would be a write per read


@dataclass(frozen=True, slots=True)
class NewKey:
    """A key just made, and the only place where `secret` ever stands."""

    key: ApiKey
    secret: str


def create(session: Session, tenant: str, *, role: Role, name: str, expires_seconds: float | None = None) -> NewKey:
    """Make a key. Raises TenantNotFound, and InvalidKey for a name that cannot be kept."""
    if not (0 < len(name) <= 255 and name.isprintable()):
        raise InvalidKey("name", "must have 1 to 255 printable characters")
    if session.get(Tenant, tenant) is None:
        raise TenantNotFound(tenant)
    secret = MARK + secrets.token_urlsafe(32)
    key = ApiKey(id=f"key_{secrets.token_hex(12)}", tenant=tenant, name=name, role=role)
    key.prefix, key.digest, key.created_at = secret[:PREFIX_LENGTH], digest(secret), db_now()
    if expires_seconds is not None:
        key.expires_at = db_now() + expires_seconds
    session.add(key)
    session.flush()
    session.refresh(key)
    return NewKey(key, secret)


def digest(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()


def find(session: Session, secret: str) -> ApiKey | None:
    """The key that a client sent; None for one that is unknown, revoked or expired, or whose tenant is disabled."""
    if not SECRET.fullmatch(secret):
        return None
    query = (
        select(ApiKey)
        .join(Tenant, Tenant.name == ApiKey.tenant)
        .where(ApiKey.digest == digest(secret), ApiKey.revoked_at.is_(None), Tenant.disabled_at.is_(None))
        .where(or_(ApiKey.expires_at.is_(None), ApiKey.expires_at > db_now()))
    )
    key = session.scalar(query)
    if key is not None:
        old = or_(ApiKey.used_at.is_(None), ApiKey.used_at < db_now() - USED_SECONDS)
        session.execute(
            update(ApiKey).where(ApiKey.id == key.id, old).values(used_at=db_now()),
            execution_options={"synchronize_session": False},
        )
    return key


def listing(session: Session, tenant: str | None) -> list[ApiKey]:
    """Keys of a tenant, or of all, oldest first, revoked ones included."""
    query = select(ApiKey).order_by(ApiKey.created_at, ApiKey.id)
    return list(session.scalars(query if tenant is None else query.where(ApiKey.tenant == tenant)))


def revoke(session: Session, key_id: str, tenant: str | None) -> ApiKey:
    """End a key, from the next request on; again is fine. Raises KeyNotFound, also for one of another tenant."""
    key = session.get(ApiKey, key_id)
    if key is None or tenant not in (None, key.tenant):
        raise KeyNotFound(key_id)
    if key.revoked_at is None:
        key.revoked_at = db_now()
        session.flush()
        session.refresh(key)
    return key
