"""Stores: this machine's disks and S3-compatible object stores behind one contract (db.stores.store.Store)."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from db.stores.local import LocalStore
from db.stores.places import Place, S3Path, S3Service
from db.stores.store import TEMP, Entry, Journal, Published, Store

__all__ = ["TEMP", "Entry", "Journal", "Place", "Published", "S3Path", "S3Service", "Store", "store_of"]


def store_of(place: Place) -> Store[Any]:
    """The store that a place lies in. Raises StorageMissing when it is one that this installation cannot reach."""
    return _s3(place.service) if isinstance(place, S3Path) else LocalStore()


# Clients keep connections, and are safe to share among threads.
@lru_cache(maxsize=8)
def _s3(service: S3Service) -> Store[Any]:
    from db.stores.s3 import S3Store  # Imported where used: it needs an extra.

    return S3Store(service)
