"""One embedded service per home folder: a file lock that also says where the service answers."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

NAME = "up.lock"


@dataclass(frozen=True, slots=True)
class Running:
    """The service that holds a home. `lasting`: started by `nightmill up`, so it outlives any one job."""

    url: str
    pid: int
    lasting: bool


class HomeInUseError(Exception):
    """Another process runs the embedded service of this home. `running` is None while that one still starts."""

    def __init__(self, home: Path, running: Running | None) -> None:
        where = f"by process {running.pid}, at {running.url}" if running else "by a process that is still starting"
        super().__init__(f"{home} is in use {where}")
        self.home = home
        self.running = running


class HomeLock:
    """Held from entry to exit, and released by the kernel if the process dies."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self._file: int | None = None

    def __enter__(self) -> Self:
        self.home.mkdir(parents=True, exist_ok=True)
        self._file = os.open(self.home / NAME, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._file)
            raise HomeInUseError(self.home, _read(self.home)) from None
        os.ftruncate(self._file, 0)
        return self

    def announce(self, running: Running) -> None:
        """Tell other processes where the service answers."""
        assert self._file is not None
        os.ftruncate(self._file, 0)
        os.pwrite(self._file, json.dumps(asdict(running)).encode(), 0)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._file is not None
        os.ftruncate(self._file, 0)
        os.close(self._file)


def running(home: Path) -> Running | None:
    """The service that holds this home now, if one does and has announced itself."""
    try:
        file = os.open(home / NAME, os.O_RDONLY)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return _read(home)
    finally:
        os.close(file)
    return None


def _read(home: Path) -> Running | None:
    with contextlib.suppress(OSError, ValueError, TypeError):
        return Running(**json.loads((home / NAME).read_text()))
    return None
