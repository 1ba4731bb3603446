"""The store of this machine's own disks.

A file is written under `_tmp` in its own folder, synced, and given its name by a hard link, which fails where the name
is taken (a rename would replace the first writer's file). Parquet writers close into a valid short file when an
exception passes; under a temporary name that harms nobody.

Places come with their links followed, by db.uris. Whoever may write in a root may put links there afterwards, in or
above the folder of a job, so nothing is read, made or removed by a path that a link has become a part of.
"""

from __future__ import annotations

import errno
import hashlib
import os
import stat
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from db.errors import InvalidDataset, LinkUnsupported
from db.stores.store import TEMP, Entry, Published

# What a name says of itself. Anything else is the machine's, and may pass.
FINAL = frozenset({
    errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.EACCES, errno.EPERM, errno.ENXIO, errno.EISDIR, errno.ENAMETOOLONG,
})  # fmt: skip
NO_LINKS = frozenset({errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EXDEV})

# Of a folder on the way to another one, which need not be readable where the system can do without.
PASSED = getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY | os.O_NOFOLLOW


class LocalStore:
    def look(self, place: Path) -> Entry | None:
        try:
            status = os.lstat(place)
        except (FileNotFoundError, NotADirectoryError):
            return None
        return Entry(place, stat.S_ISDIR(status.st_mode), status.st_size, _version(status))

    def walk(self, folder: Path, prefix: str = "") -> Iterator[Entry]:
        """Links are given as what they lead to: opening one is refused, so that nothing is left out in silence."""
        _check_links(folder)
        for parent, folders, names in os.walk(folder):
            here = Path(parent)
            if here == folder:
                folders[:] = [name for name in folders if name.startswith(prefix)]
                names = [name for name in names if name.startswith(prefix)]
            for name in folders:
                if (here / name).is_symlink():
                    yield Entry(here / name, True)
            for name in names:
                with suppress(FileNotFoundError):  # it went while the folder was read
                    status = os.lstat(here / name)
                    yield Entry(here / name, False, status.st_size, _version(status))

    def is_empty(self, folder: Path) -> bool:
        try:
            with os.scandir(folder) as entries:
                return next(entries, None) is None
        except FileNotFoundError:
            return True

    def open(self, place: Path) -> tuple[BinaryIO, str]:
        """Open without following a link and without waiting for the other end of a pipe."""
        _check_links(place)
        try:
            fd = os.open(place, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as error:
            if error.errno not in FINAL:
                raise
            raise InvalidDataset("not_a_file", str(place), f"cannot be opened: {error.strerror}") from error
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            os.close(fd)
            raise InvalidDataset("not_a_file", str(place), "is not a regular file")
        return os.fdopen(fd, "rb"), _version(status)

    def prepare(self, folder: Path) -> None:
        _check_links(folder)
        folder.mkdir(parents=True, exist_ok=True)

    def create(self, place: Path, write: Callable[[BinaryIO], None]) -> Published:
        """Errors of `write` and of the disk pass and leave no file of that name. Raises LinkUnsupported, and
        InvalidDataset (`changed`) where a part of the path is a symbolic link."""
        temp = place.parent / TEMP / f"{place.name}.{uuid.uuid4().hex}"
        file = create_temp(temp)
        try:
            with file:
                write(file)
                file.flush()
                os.fsync(file.fileno())
            _check_links(temp.parent)  # again: writing may have taken hours
            created = _link(temp, place)
        finally:
            temp.unlink(missing_ok=True)
            with suppress(OSError):  # another writer is at work
                temp.parent.rmdir()
        _sync_folder(place.parent)
        return Published(created, *self.digest(place))

    def digest(self, place: Path) -> tuple[int, str]:
        file, _ = self.open(place)
        with file:
            digest = hashlib.file_digest(file, "sha256")  # type: ignore[arg-type]  # it is a file, and has readinto
            return os.fstat(file.fileno()).st_size, digest.hexdigest()

    def journal(self, place: Path) -> LocalJournal:
        return LocalJournal(place)

    def remove(self, places: list[Path]) -> None:
        for folder in {place.parent for place in places}:
            _check_links(folder)
        for place in places:
            place.unlink(missing_ok=True)

    def sweep(self, folder: Path, older_than: float) -> int:
        _check_links(folder / TEMP)
        removed = 0
        with suppress(FileNotFoundError), _opened(folder / TEMP) as fd:  # nothing put there now changes what it means
            for entry in list(os.scandir(fd)):
                with suppress(FileNotFoundError):
                    if time.time() - entry.stat(follow_symlinks=False).st_mtime >= older_than:
                        os.unlink(entry.name, dir_fd=fd)
                        removed += 1
        with suppress(OSError):
            (folder / TEMP).rmdir()
        return removed


@dataclass(slots=True)
class LocalJournal:
    """Appended bytes survive the end of the process at once, and a power cut mostly: nothing is synced."""

    place: Path
    _file: BinaryIO | None = field(default=None)

    def append(self, data: bytes) -> None:
        if self._file is None:
            self._file = create_temp(self.place)
        self._file.write(data)
        self._file.flush()

    def close(self) -> None:
        if self._file is not None:
            self._file.close()


def create_temp(temp: Path) -> BinaryIO:
    """A new file in a folder's `_tmp`, which other writers make and take away when it is empty."""
    while True:
        _check_links(temp.parent)
        try:
            temp.parent.mkdir(parents=True, exist_ok=True)
            return open(temp, "xb")
        except FileNotFoundError:  # it was taken away in between
            continue
        except FileExistsError:  # or while mkdir looked at what was there
            if temp.exists() or not _gone_or_folder(temp.parent):
                raise


def _gone_or_folder(path: Path) -> bool:
    try:
        return stat.S_ISDIR(os.lstat(path).st_mode)
    except FileNotFoundError:
        return True


def _check_links(place: Path) -> None:
    """Raises InvalidDataset where a part of the path is a symbolic link. What is not there is none."""
    if os.path.realpath(place) != str(place):
        raise InvalidDataset("changed", str(place), "a part of the path is a symbolic link")


def _version(status: os.stat_result) -> str:
    return f"{status.st_size}-{status.st_mtime_ns}"


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


@contextmanager
def _opened(folder: Path) -> Iterator[int]:
    """A folder by its absolute path, name by name: a link that was put there a moment ago is not followed either."""
    fd = os.open(folder.anchor, PASSED)
    try:
        for name in (*folder.parts[1:], "."):
            inner = os.open(name, os.O_RDONLY | os.O_DIRECTORY if name == "." else PASSED, dir_fd=fd)
            os.close(fd)
            fd = inner
        yield fd
    finally:
        os.close(fd)
