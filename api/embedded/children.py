"""A child process that dies with its parent.

Each child leads a process group of its own: a terminal's Ctrl-C reaches the parent alone, which then stops its children
in order. On Linux the kernel sends a child SIGTERM when the parent is gone, however it went.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

PR_SET_PDEATHSIG = 1
LOG_TAIL_BYTES = 4096


class ChildError(Exception):
    """A child process ended by itself and could not be kept alive."""

    def __init__(self, name: str, code: int | None, log: Path | None) -> None:
        where = f"\n{_tail(log)}\n(from {log})" if log is not None and log.exists() else ""
        super().__init__(f"the {name} process does not stay alive (exit status {code}){where}")
        self.name = name


@dataclass(slots=True)
class Child:
    """One command, started as often as it must be. `log` None: its output is the parent's."""

    name: str
    command: Sequence[str]
    environment: Mapping[str, str]
    log: Path | None
    inherited: tuple[int, ...] = ()
    _process: subprocess.Popen[bytes] | None = field(default=None, init=False)

    def start(self) -> None:
        """Start the command. The calling thread must live as long as the child: it is what the kernel watches."""
        sink = None if self.log is None else self.log.open("ab")
        try:
            self._process = subprocess.Popen(  # noqa: S603 - our own commands, no shell
                self.command,
                env=dict(self.environment),
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=sink,
                pass_fds=self.inherited,
                process_group=0,
                preexec_fn=_die_with_parent(),
            )
        finally:
            if sink is not None:
                sink.close()

    @property
    def alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    @property
    def code(self) -> int | None:
        """Exit status once it has ended; negative: the signal that ended it."""
        return None if self._process is None else self._process.poll()

    def terminate(self) -> None:
        self._signal(signal.SIGTERM)

    def stop(self, seconds: float) -> None:
        """SIGTERM, then SIGKILL to what is left of the group after `seconds`."""
        if self._process is None:
            return
        self.terminate()
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            self._signal(signal.SIGKILL)
            self._process.wait()

    def kill(self) -> None:
        self._signal(signal.SIGKILL)
        if self._process is not None:
            self._process.wait()

    def _signal(self, number: signal.Signals) -> None:
        if self._process is not None and self._process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, number)


def _die_with_parent() -> Callable[[], None] | None:
    """What the forked child does before its command runs. Only Linux has the kernel's help."""
    if sys.platform != "linux":
        return None
    libc = ctypes.CDLL(None)  # Loaded here: nothing may be loaded between fork and exec.
    parent = os.getpid()

    def prepare() -> None:
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
        if os.getppid() != parent:  # The parent died before the call.
            os._exit(1)

    return prepare


def _tail(log: Path) -> str:
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - LOG_TAIL_BYTES))
        return file.read().decode(errors="replace").strip()
