"""Tenants, and the folders that are theirs. The caller owns the transaction."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from sqlalchemy.orm import Session

from db.accounts import DEFAULT, Tenant
from db.errors import TenantNotFound
from db.settings import Settings
from db.stores import Place


@dataclass(frozen=True, slots=True)
class Folders:
    """Where a tenant's bytes lie. A URI may name what lies under `roots`, resolved, and nothing else."""

    data: Path  # results of jobs that name no output
    uploads: Path
    roots: tuple[Place, ...]


def default_folders(settings: Settings) -> Folders:
    """The folders of the tenant `default`: those of the settings."""
    return Folders(settings.data_folder, settings.uploads, settings.roots)


def folders(session: Session, settings: Settings, tenant: str) -> Folders:
    """The folders of a tenant: its own under the home, and those that the operator gave it. Raises TenantNotFound."""
    if tenant == DEFAULT:
        return default_folders(settings)
    row = session.get(Tenant, tenant)
    if row is None:
        raise TenantNotFound(tenant)
    own = settings.home / "tenants" / tenant
    data, uploads = own / "data", own / "uploads"
    return Folders(data, uploads, tuple(settings.root(str(root)) for root in (data, uploads, *row.roots)))
