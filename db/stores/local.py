"""The store of this machine's own disks.

A file is written under `_tmp` in its own folder, synced, and given its name by a hard link, which fails where the name
is taken (a rename would replace the first writer's file). Parquet writers close into a valid short file when an
exception passes; under a temporary name that harms nobody.

Places come with their links followed, by db.uris. Whoever may write in a root may put links there afterwards, in or
above the folder of a job, so nothing is read, made or removed by a path that a link has become a part of, however
shortly before (db.stores.folders).
"""

from __future__ import annotations

import errno
import hashlib
import os
import stat
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, TypeVar

from db.errors import InvalidDataset, LinkUnsupported
from db.stores.folders import entered, listed, opened, refuse_link
from db.stores.store import TEMP, Entry, Published

# What a name says of itself. Anything else is the machine's, and may pass.
FINAL = frozenset({
    errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.EACCES, errno.EPERM, errno.ENXIO, errno.EISDIR, errno.ENAMETOOLONG,
})  # fmt: skip
NO_LINKS = frozenset({errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EXDEV})
TRIES = 1000  # of making a folder that others take away
T = TypeVar("T")


class LocalStore:
    def look(self, place: Path) -> Entry | None:
        try:
            status = os.lstat(place)
        except (FileNotFoundError, NotADirectoryError):
            return None
        return Entry(place, stat.S_ISDIR(status.st_mode), status.st_size, _version(status))

    def walk(self, folder: Path, prefix: str = "") -> Iterator[Entry]:
        """Links are given as what they lead to: opening one is refused, so that nothing is left out in silence."""
        try:
            with opened(folder) as fd:
                yield from _below(folder, fd, prefix)
        except (FileNotFoundError, NotADirectoryError):
            return
        except PermissionError as error:
            raise _unlisted(error.filename, error) from error

    def is_empty(self, folder: Path) -> bool:
        try:
            with os.scandir(folder) as entries:
                return next(entries, None) is None
        except FileNotFoundError:
            return True

    def open(self, place: Path) -> tuple[BinaryIO, str]:
        """Open without following a link and without waiting for the other end of a pipe."""
        try:
            with opened(place.parent) as folder:
                how = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
                fd = os.open(place.name, how, dir_fd=folder)
        except OSError as error:
            if error.errno == errno.ELOOP:
                raise refuse_link(place) from error
            if error.errno not in FINAL:
                raise
            raise InvalidDataset("not_a_file", str(place), f"cannot be opened: {error.strerror}") from error
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            os.close(fd)
            raise InvalidDataset("not_a_file", str(place), "is not a regular file")
        return os.fdopen(fd, "rb"), _version(status)

    def prepare(self, folder: Path) -> None:
        _made(folder, lambda fd: None)

    def create(self, place: Path, write: Callable[[BinaryIO], None]) -> Published:
        """Errors of `write` and of the disk pass and leave no file of that name. Raises LinkUnsupported, and
        InvalidDataset (`changed`) where a part of the path is a symbolic link."""
        folder, inside = place.parent, place.parent / TEMP
        temp = f"{place.name}.{uuid.uuid4().hex}"
        file = create_temp(inside / temp)
        try:
            with file:
                write(file)
                file.flush()
                os.fsync(file.fileno())
            with opened(folder) as target, entered(target, folder, TEMP) as source:  # anew: writing may take hours
                created = _link(source, temp, target, place)
                with listed(target) as fd:  # else the name may be lost in a power cut although the bytes are safe
                    os.fsync(fd)
        finally:
            with suppress(OSError, InvalidDataset), opened(inside) as fd:
                os.unlink(temp, dir_fd=fd)
            with suppress(OSError, InvalidDataset), opened(folder) as fd:
                os.rmdir(TEMP, dir_fd=fd)  # fails while another writer is at work
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
            with suppress(FileNotFoundError), opened(folder) as fd:
                for place in places:
                    if place.parent == folder:
                        with suppress(FileNotFoundError):
                            os.unlink(place.name, dir_fd=fd)

    def sweep(self, folder: Path, older_than: float) -> int:
        removed = 0
        with suppress(FileNotFoundError), opened(folder / TEMP) as inside, listed(inside) as fd:
            for entry in list(os.scandir(fd)):
                with suppress(FileNotFoundError):
                    if time.time() - entry.stat(follow_symlinks=False).st_mtime >= older_than:
                        os.unlink(entry.name, dir_fd=fd)
                        removed += 1
        with suppress(OSError, InvalidDataset), opened(folder) as fd:
            os.rmdir(TEMP, dir_fd=fd)
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

    def make(fd: int) -> BinaryIO:
        return open(temp, "xb", opener=lambda path, flags: os.open(temp.name, flags, 0o666, dir_fd=fd))

    return _made(temp.parent, make)


def _made(folder: Path, use: Callable[[int], T]) -> T:
    """What `use` gives of the folder, made if it is not there."""
    for _ in range(TRIES):
        with suppress(FileNotFoundError), opened(folder, make=True) as fd:  # another writer takes it away in between
            return use(fd)
    with opened(folder, make=True) as fd:
        return use(fd)


def _below(folder: Path, fd: int, prefix: str = "") -> Iterator[Entry]:
    """The files of an open folder, then those of the folders inside."""
    try:
        with listed(fd) as readable:
            names = [name for name in os.listdir(readable) if name.startswith(prefix)]
    except PermissionError as error:  # its files would be left out in silence
        raise _unlisted(folder, error) from error
    inside = []
    for name in names:
        with suppress(FileNotFoundError):  # it went while the folder was read
            status = os.lstat(name, dir_fd=fd)
            if stat.S_ISDIR(status.st_mode):
                inside.append(name)
            else:
                is_folder = stat.S_ISLNK(status.st_mode) and os.path.isdir(folder / name)
                yield Entry(folder / name, is_folder, status.st_size, _version(status))
    for name in inside:
        with suppress(FileNotFoundError), entered(fd, folder, name) as inner:
            yield from _below(folder / name, inner)


def _unlisted(folder: Path | str, error: OSError) -> InvalidDataset:
    return InvalidDataset("not_a_folder", str(folder), f"cannot be listed: {error.strerror}")


def _version(status: os.stat_result) -> str:
    return f"{status.st_size}-{status.st_mtime_ns}"


def _link(source: int, temp: str, target: int, final: Path) -> bool:
    """Give the file `temp` of one open folder its name in another one; False when the name is taken."""
    try:
        os.link(temp, final.name, src_dir_fd=source, dst_dir_fd=target, follow_symlinks=False)
    except FileExistsError:
        return False
    except OSError as error:
        if error.errno in NO_LINKS:
            raise LinkUnsupported(str(final.parent), str(error.strerror)) from error
        raise
    return True
