"""Tenants, and the folders that are theirs. The caller owns the transaction."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from db import s3_uris
from db.accounts import DEFAULT, Tenant
from db.errors import DatasetRefused, InvalidTenant, TenantNotFound
from db.session import db_now
from db.settings import Settings
from db.stores import Place
from db.stores.places import contains

NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,62}")


@dataclass(frozen=True, slots=True)
class Folders:
    """Where a tenant's bytes lie. A URI may name what lies under `roots`, resolved, and nothing else."""

    data: Path  # results of jobs that name no output
    uploads: Path
    roots: tuple[Place, ...]
    counts_tokens: bool = False  # the tenant has a quota of them: a submission must estimate its own


@dataclass(frozen=True, slots=True)
class Changes:
    """What to set of a tenant: `roots`, `disabled`, and the quotas by their names in db.accounts.Tenant."""

    given: dict[str, Any]


def default_folders(settings: Settings) -> Folders:
    """The folders of the tenant `default`: those of the settings."""
    return Folders(settings.data_folder, settings.uploads, settings.roots)


def folders(session: Session, settings: Settings, tenant: str) -> Folders:
    """The folders of a tenant: its own under the home, and those that the operator gave it. Raises TenantNotFound."""
    row = get(session, tenant)
    counts = row.max_queued_tokens is not None
    if tenant == DEFAULT:
        return replace(default_folders(settings), counts_tokens=counts)
    own = settings.home / "tenants" / tenant
    data, uploads = own / "data", own / "uploads"
    roots = tuple(settings.root(str(root)) for root in (data, uploads, *row.roots))
    return Folders(data, uploads, roots, counts)


def create(session: Session, settings: Settings, name: str, changes: Changes) -> Tenant:
    """Add a tenant. Raises InvalidTenant for a name that is no folder's name or is taken, and as `change`."""
    if not NAME.fullmatch(name):
        raise InvalidTenant("name", "must have 1 to 63 of a-z, 0-9, - and _, the first one no - or _")
    if session.get(Tenant, name) is not None:
        raise InvalidTenant("name", f"there is a tenant {name!r} already")
    tenant = Tenant(name=name, roots=[], created_at=db_now())
    session.add(tenant)
    session.flush()
    return change(session, settings, name, changes)


def change(session: Session, settings: Settings, name: str, changes: Changes) -> Tenant:
    """Set what `changes` names. Raises TenantNotFound, and InvalidTenant for a root that others can reach."""
    tenant = get(session, name)
    for field, value in changes.given.items():
        if field == "roots":
            value = _checked_roots(session, settings, name, value)
        if field == "disabled":
            field, value = "disabled_at", db_now() if value else None
        setattr(tenant, field, value)
    session.flush()
    session.refresh(tenant)
    return tenant


def get(session: Session, name: str) -> Tenant:
    """Raises TenantNotFound."""
    tenant = session.get(Tenant, name)
    if tenant is None:
        raise TenantNotFound(name)
    return tenant


def listing(session: Session) -> list[Tenant]:
    return list(session.scalars(select(Tenant).order_by(Tenant.name)))


def check_apart(session: Session, settings: Settings) -> None:
    """`change` compares with the settings of its own time; these may be others by now.

    Raises InvalidTenant where a folder of a tenant and one of the settings lie one inside the other.
    """
    own: list[tuple[str, Place]] = [("NIGHTMILL_DATA_ROOTS", settings.root(str(root))) for root in settings.data_roots]
    home = settings.home, settings.data_folder, settings.uploads
    own += [("NIGHTMILL_HOME", settings.root(str(folder))) for folder in home]
    for tenant in listing(session):
        for root in tenant.roots:
            place = settings.root(root)
            for setting, taken in own:
                if contains(taken, place) or contains(place, taken):
                    raise InvalidTenant(
                        "roots",
                        f"{root}, of tenant {tenant.name!r}, and {taken}, of {setting}, lie one inside the other: "
                        "change the setting, or the tenant's folders by `nightmill tenants set`",
                    )


def _checked_roots(session: Session, settings: Settings, name: str, roots: Iterable[Path | str]) -> list[str]:
    """Absolute, resolved, and apart from the places of every other tenant and from the home.

    One place inside another's would let its tenant read and write what is the other's.
    """
    if name == DEFAULT:
        raise InvalidTenant("roots", "those of the tenant 'default' are set by NIGHTMILL_DATA_ROOTS")
    taken: list[tuple[str, Place]] = [(f"tenant {DEFAULT!r}", root) for root in settings.roots]
    taken.append(("the home of the service", Path(os.path.realpath(settings.home))))
    for other in listing(session):
        if other.name != name:
            taken += [(f"tenant {other.name!r}", settings.root(root)) for root in other.roots]
    found = []
    for root in map(str, roots):
        place = _root(settings, root)
        for whose, folder in taken:
            if contains(folder, place) or contains(place, folder):
                raise InvalidTenant("roots", f"{root} and {folder}, of {whose}, lie one inside the other")
        found.append(str(place))
    return found


def _root(settings: Settings, root: str) -> Place:
    """A prefix of a bucket is taken as it is spelled: the operator may know it before anything lies there."""
    if not s3_uris.is_s3(root):
        if not (Path(root).is_absolute() and Path(root).is_dir()):
            raise InvalidTenant("roots", f"{root} is neither the absolute path of a folder nor s3://bucket/prefix")
        return settings.root(root)
    try:
        return settings.root(root)
    except DatasetRefused as error:
        raise InvalidTenant("roots", str(error)) from None
