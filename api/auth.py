"""Who calls: API keys of requests. With authentication off, every caller is an admin of the tenant `default`."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass

from sqlalchemy.orm import Session, sessionmaker

from db import keys
from db.accounts import DEFAULT, Role
from db.audit import Actor
from db.errors import DomainError
from db.settings import Settings


class Unauthenticated(DomainError):
    """No key, or none that is good. Why is not told: it would help guessing."""

    code = "unauthenticated"

    def __init__(self) -> None:
        super().__init__("send a key that is not revoked or expired: Authorization: Bearer nm_…")


class Forbidden(DomainError):
    code = "forbidden"

    def __init__(self, role: Role, needed: str) -> None:
        super().__init__(f"the key's role is {role!r}; this takes {needed}")
        self.role = role
        self.needed = needed


class AuthRequired(DomainError):
    """The API would listen where others can reach it, and would let everybody in."""

    code = "auth_required"

    def __init__(self, host: str) -> None:
        super().__init__(
            f"the host {host!r} is not a loopback address, where the API may only listen with keys: "
            "set NIGHTMILL_AUTH=true and make a key with `nightmill keys create`, or set NIGHTMILL_HOST=127.0.0.1"
        )
        self.host = host


@dataclass(frozen=True, slots=True)
class Caller:
    """Whoever a request comes from. All that a route does is done in this tenant; `key_id` is None without keys."""

    tenant: str
    role: Role
    key_id: str | None
    address: str = ""

    @property
    def actor(self) -> Actor:
        """As the audit log names it."""
        return Actor(self.tenant, self.key_id, self.address)

    @property
    def operator(self) -> bool:
        """Whether it is the installation's own tenant, which alone may see what is about all tenants."""
        return self.tenant == DEFAULT

    def need(self, role: Role) -> None:
        """Raises Forbidden."""
        if not self.role.allows(role):
            raise Forbidden(self.role, f"{role.value!r}")


def authenticate(
    settings: Settings, sessions: sessionmaker[Session], authorization: str | None, address: str
) -> Caller:
    """The caller behind an Authorization header. Raises Unauthenticated."""
    if not settings.auth:
        return Caller(DEFAULT, Role.ADMIN, None, address)
    scheme, _, secret = (authorization or "").partition(" ")
    if scheme.lower() != "bearer":
        raise Unauthenticated
    with sessions.begin() as session:
        key = keys.find(session, secret.strip())
    if key is None:
        raise Unauthenticated
    return Caller(key.tenant, key.role, key.id, address)


def check_exposure(settings: Settings) -> None:
    """Raises AuthRequired when the API would listen beyond this machine and let everybody in."""
    if not settings.auth and not is_loopback(settings.host):
        raise AuthRequired(settings.host)


def is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host.lower() == "localhost"
