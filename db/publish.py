"""Publishing a file so that it is there whole or not at all, and only the first of several writers makes it.

A file is written under `_tmp` in its own folder, synced, and given its name by a hard link, which fails where the name
is taken (a rename would replace the first writer's file). Parquet writers close into a valid short file when an
exception passes; under a temporary name that harms nobody.
"""

from __future__ import annotations

import errno
import hashlib
import os
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from db.errors import LinkUnsupported

TEMP = "_tmp"
NO_LINKS = frozenset({errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EXDEV})


@dataclass(frozen=True, slots=True)
class Published:
    """The file that now has the name: made by this call, or by an earlier one. The counts are of that file."""

    created: bool
    num_bytes: int
    sha256: str


def publish(folder: Path, name: str, write: Callable[[BinaryIO], None]) -> Published:
    """Have `write` fill a file and publish it as folder/name; an existing file of that name stays as it is.

    Makes the folder. Errors of `write` and of the disk pass and leave no file of that name. Raises LinkUnsupported.
    """
    assert name == os.path.basename(name), name
    temp, file = _open_temp(folder, name)
    try:
        with file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        created = _link(temp, folder / name)
    finally:
        temp.unlink(missing_ok=True)
        with suppress(OSError):  # another writer is at work
            temp.parent.rmdir()
    _sync_folder(folder)
    return Published(created, *digest(folder / name))


def _open_temp(folder: Path, name: str) -> tuple[Path, BinaryIO]:
    temp = folder / TEMP / f"{name}.{uuid.uuid4().hex}"
    return temp, create_temp(temp)


def create_temp(temp: Path) -> BinaryIO:
    """A new file in a folder's `_tmp`."""
    while True:
        temp.parent.mkdir(parents=True, exist_ok=True)
        with suppress(FileNotFoundError):  # a writer that ended took the empty folder away in between
            return open(temp, "xb")


def _link(temp: Path, final: Path) -> bool:
    try:
        os.link(temp, final)
    except FileExistsError:
        return False
    except OSError as error:
        if error.errno in NO_LINKS:
            raise LinkUnsupported(str(final.parent), str(error.strerror)) from error
        raise
    return True


def _sync_folder(folder: Path) -> None:
    """Without this the new name may be lost in a power cut although the file's bytes are safe."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def digest(path: Path) -> tuple[int, str]:
    """Size in bytes and SHA-256 of a file."""
    with open(path, "rb") as file:
        return os.fstat(file.fileno()).st_size, hashlib.file_digest(file, "sha256").hexdigest()


def sweep_tmp(folder: Path, older_than: float) -> int:
    """Remove what killed writers left under folder/_tmp more than `older_than` seconds ago; returns how many files."""
    removed = 0
    with suppress(FileNotFoundError):
        for entry in list(os.scandir(folder / TEMP)):
            with suppress(FileNotFoundError):
                if time.time() - entry.stat(follow_symlinks=False).st_mtime >= older_than:
                    os.unlink(entry.path)
                    removed += 1
    with suppress(OSError):
        (folder / TEMP).rmdir()
    return removed
