"""Publishing a file so that it is there whole or not at all, and only the first of several writers makes it.

How, is the store's affair: a hard link on a disk, a conditional put in a bucket.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import BinaryIO

from db.stores import TEMP, Place, Published, store_of

__all__ = ["TEMP", "Published", "digest", "publish", "sweep_tmp"]


def publish(folder: Place, name: str, write: Callable[[BinaryIO], None]) -> Published:
    """Have `write` fill a file and publish it as folder/name; an existing file of that name stays as it is.

    Makes the folder. Errors of `write` and of the store pass and leave no file of that name.
    """
    assert name == os.path.basename(name), name
    return store_of(folder).create(folder / name, write)


def digest(place: Place) -> tuple[int, str]:
    """Size in bytes and SHA-256 of a file."""
    return store_of(place).digest(place)


def sweep_tmp(folder: Place, older_than: float) -> int:
    """Remove what killed writers left under folder/_tmp more than `older_than` seconds ago; returns how many files."""
    return store_of(folder).sweep(folder, older_than)
