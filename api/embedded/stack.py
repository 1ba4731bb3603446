"""The whole service in one foreground process: broker, API and worker as children, started by their command lines.

Nothing of a child is imported here; a child gets its settings through the environment alone.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import socket
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from api.auth import check_exposure
from api.client import Client
from api.embedded import broker
from api.embedded.children import Child, ChildError
from api.embedded.lock import HomeLock, Running
from db.settings import Settings

log = logging.getLogger(__name__)
READY_SECONDS = 60.0
RESTART_WINDOW_SECONDS = 60.0
MAX_RESTARTS = 5  # within the window
STOP_SECONDS = {"worker": 15.0, "API": 8.0, "broker": 8.0}  # the worker hands its shards back first


class PortTakenError(Exception):
    """Another program listens on the API's address."""

    def __init__(self, host: str, port: int, reason: str) -> None:
        super().__init__(f"cannot listen on {host}:{port}: {reason}; choose another port with --port or NIGHTMILL_PORT")


class Stack:
    """The running children. Use it from one thread, which must live as long as they should."""

    def __init__(self, settings: Settings, logs: Path | None) -> None:
        """`logs`: folder for one log file per child; None: they write to the terminal."""
        self._logs = logs
        self._listener = _listen(settings.host, settings.port)
        address, port = self._listener.getsockname()[:2]
        self.url = f"http://{f'[{address}]' if ':' in address else address}:{port}"
        self._broker = None if settings.redis_url else broker.plan(settings.home / "broker")
        self.warning = self._broker.warning if self._broker else None
        url = settings.redis_url or (self._broker.url if self._broker else "")
        self._settings = settings.model_copy(update={"redis_url": url, "port": port})
        self.children = self._children()
        self._restarts: dict[str, list[float]] = {child.name: [] for child in self.children}

    @property
    def broker_kind(self) -> str:
        return self._broker.kind if self._broker else "the Redis at the configured address"

    def start(self) -> None:
        """Start everything and wait until the API is ready. Raises ChildError; stops what it started then."""
        try:
            for child in self.children:
                child.start()
                self._after_start(child)
            deadline = time.monotonic() + READY_SECONDS
            with Client(self.url, retries=0) as client:
                while not client.ready():
                    self.check()
                    if time.monotonic() > deadline:
                        raise ChildError("API", self._child("API").code, self._child("API").log)
                    time.sleep(0.1)
        except BaseException:
            self.stop()
            raise

    def check(self) -> None:
        """Start again what has died. Raises ChildError for one that dies over and over."""
        for child in self.children:
            if child.alive:
                continue
            now = time.monotonic()
            recent = [at for at in self._restarts[child.name] if now - at < RESTART_WINDOW_SECONDS]
            if len(recent) >= MAX_RESTARTS:
                raise ChildError(child.name, child.code, child.log)
            self._restarts[child.name] = [*recent, now]
            log.warning("the %s process ended (exit status %s) and is started again", child.name, child.code)
            child.start()
            self._after_start(child)

    def stop(self) -> None:
        """Stop worker and API, then the broker they use. A second Ctrl-C meanwhile kills them all."""
        try:
            users = [child for child in self.children if child.name != "broker"]
            for child in users:
                child.terminate()
            for child in [*users, *(child for child in self.children if child.name == "broker")]:
                child.stop(STOP_SECONDS[child.name])
        except KeyboardInterrupt:
            for child in self.children:
                child.kill()
        finally:
            self._listener.close()
            if self._broker is not None and self._broker.scratch is not None:
                shutil.rmtree(self._broker.scratch, ignore_errors=True)

    def _children(self) -> list[Child]:
        """In starting order. -P keeps a folder `worker` or `api` in the user's working directory from being run."""
        environment = child_environment(self._settings, os.environ)
        python = (sys.executable, "-P", "-m")
        descriptor = self._listener.fileno()
        children = [
            Child("API", (*python, "api", "--fd", str(descriptor)), environment, self._log("api"), (descriptor,)),
            Child("worker", (*python, "worker"), environment, self._log("worker")),
        ]
        if self._broker is not None:
            children.insert(0, Child("broker", self._broker.command, environment, self._log("broker")))
        return children

    def _after_start(self, child: Child) -> None:
        if child.name == "broker":
            assert self._broker is not None
            broker.wait_ready(self._broker, child)

    def _child(self, name: str) -> Child:
        return next(child for child in self.children if child.name == name)

    def _log(self, name: str) -> Path | None:
        if self._logs is None:
            return None
        self._logs.mkdir(parents=True, exist_ok=True)
        return self._logs / f"{name}.log"


@contextmanager
def embedded(settings: Settings, *, logs: Path | None, lasting: bool) -> Iterator[Stack]:
    """The service of a home while the block runs. Raises AuthRequired, HomeInUseError, PortTakenError, ChildError."""
    check_exposure(settings)
    with HomeLock(settings.home) as lock:
        stack = Stack(settings, logs)
        stack.start()
        lock.announce(Running(stack.url, os.getpid(), lasting))
        try:
            yield stack
        finally:
            stack.stop()


def child_environment(settings: Settings, inherited: Mapping[str, str]) -> dict[str, str]:
    """The inherited environment with every setting written out, so that a child reads exactly these settings."""
    names = {f"NIGHTMILL_{field.upper()}" for field in Settings.model_fields} | {"REDIS_URL", "DATABASE_URL"}
    environment = {name: value for name, value in inherited.items() if name not in names}
    for field, value in settings.model_dump(mode="json").items():
        if value is not None:
            text = value if isinstance(value, str) else json.dumps(value)
            environment[f"NIGHTMILL_{field.upper()}"] = text
    return {**environment, "PYTHONUNBUFFERED": "1"}


def _listen(host: str, port: int) -> socket.socket:
    """The API's socket. Held here, so that a restart of the API loses no connection."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    with suppress(OSError):
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        listener.listen(128)
    except OSError as error:
        listener.close()
        raise PortTakenError(host, port, error.strerror or str(error)) from error
    return listener
