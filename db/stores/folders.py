"""Folders opened by their absolute path, name by name, so that no symbolic link on the way is followed.

What is then done by a name inside the open folder cannot be led elsewhere by a link that is put in its path meanwhile,
which looking first and using the path afterwards could.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from db.errors import InvalidDataset

# Such a folder need not be readable where the system can do without.
PASSED = getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
LINK = frozenset({errno.ENOTDIR, errno.ELOOP})  # what opening a link says; ENOTDIR of a file too


@contextmanager
def opened(folder: Path, *, make: bool = False) -> Iterator[int]:
    """A descriptor to give as `dir_fd`. `make`: make what is not there.

    Raises InvalidDataset (`changed`) where a part of the path is a symbolic link, FileNotFoundError (with `make` too,
    when somebody takes a folder away at this moment), NotADirectoryError.
    """
    assert folder.is_absolute(), folder
    fd = os.open(folder.anchor, PASSED)
    try:
        for depth, name in enumerate(folder.parts[1:], 1):
            inner = _enter(fd, Path(*folder.parts[:depth]), name, make)
            os.close(fd)
            fd = inner
        with _naming(folder):
            yield fd
    finally:
        os.close(fd)


@contextmanager
def entered(fd: int, folder: Path, name: str) -> Iterator[int]:
    """A folder inside of an open one. Raises as `opened`."""
    inner = _enter(fd, folder, name)
    try:
        yield inner
    finally:
        os.close(inner)


@contextmanager
def listed(fd: int) -> Iterator[int]:
    """The same folder for reading its names, or for syncing it."""
    inner = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=fd)
    try:
        yield inner
    finally:
        os.close(inner)


def refuse_link(place: Path) -> InvalidDataset:
    return InvalidDataset("changed", str(place), "a part of the path is a symbolic link")


@contextmanager
def _naming(folder: Path) -> Iterator[None]:
    """Have errors name the whole path of what they are about."""
    try:
        yield
    except OSError as error:
        if isinstance(error.filename, str):
            error.filename = str(folder / error.filename)
        raise


def _enter(fd: int, folder: Path, name: str, make: bool = False) -> int:
    with _naming(folder):
        try:
            return os.open(name, PASSED, dir_fd=fd)
        except FileNotFoundError:
            if not make:
                raise
            with suppress(FileExistsError):  # another writer makes it too
                os.mkdir(name, dir_fd=fd)
            return os.open(name, PASSED, dir_fd=fd)
        except OSError as error:
            if error.errno in LINK and stat.S_ISLNK(os.lstat(name, dir_fd=fd).st_mode):
                raise refuse_link(folder / name) from error
            raise
