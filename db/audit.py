"""The audit log: who did what to which object, when, with which key and from where. Entries are only ever added.

The database itself refuses to change or delete one (a trigger, see revision 0009). An entry is written in the
transaction of the change that it tells of: there is none without the other.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from db.accounts import AuditEntry
from db.session import db_now


@dataclass(frozen=True, slots=True)
class Actor:
    """Who acts. `key_id` None: without keys, or on the server's own command line; then `address` says so."""

    tenant: str
    key_id: str | None
    address: str


def record(session: Session, actor: Actor, action: str, thing: str, **details: Any) -> None:
    """Add an entry: `action` as noun.verb, `thing` the id of what it was done to. Details must hold no secret."""
    entry = AuditEntry(tenant=actor.tenant, key_id=actor.key_id, address=actor.address[:255], action=action)
    entry.thing, entry.details, entry.at = thing[:255], details, db_now()
    session.add(entry)
    session.flush()


def listing(session: Session, tenant: str | None, *, limit: int, before: int | None = None) -> list[AuditEntry]:
    """Entries of a tenant, or of all, newest first, at most `limit`, older than the entry `before`."""
    query = select(AuditEntry).order_by(AuditEntry.id.desc()).limit(limit)
    if tenant is not None:
        query = query.where(AuditEntry.tenant == tenant)
    return list(session.scalars(query if before is None else query.where(AuditEntry.id < before)))
