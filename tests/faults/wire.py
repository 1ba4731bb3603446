"""Wires that can be cut: a TCP proxy that goes silent, and a network namespace whose cable can be pulled."""

from __future__ import annotations

import os
import select
import shutil
import socket
import subprocess
import threading
from urllib.parse import urlsplit, urlunsplit

import pytest


class Proxy:
    """Carries connections to `target` (host, port). While `silent`, nothing passes and nothing is closed."""

    def __init__(self, target: tuple[str, int], host: str = "127.0.0.1") -> None:
        self._target = target
        self._listener = socket.create_server((host, 0))
        self.address: tuple[str, int] = self._listener.getsockname()
        self._heard = threading.Event()  # set: not silent
        self._heard.set()
        self._closed = False
        threading.Thread(target=self._accept, daemon=True).start()

    def silence(self) -> None:
        self._heard.clear()

    def heal(self) -> None:
        self._heard.set()

    def close(self) -> None:
        self._closed = True
        self._heard.set()
        self._listener.close()

    def _accept(self) -> None:
        while not self._closed:
            try:
                client, _ = self._listener.accept()
            except OSError:  # closed
                return
            threading.Thread(target=self._carry, args=(client,), daemon=True).start()

    def _carry(self, client: socket.socket) -> None:
        self._heard.wait()
        try:
            with client, socket.create_connection(self._target, timeout=5) as server:
                server.settimeout(None)
                other = {client: server, server: client}
                while not self._closed:
                    ready, _, _ = select.select([client, server], [], [], 0.2)
                    self._heard.wait()
                    for side in ready:
                        data = side.recv(65536)
                        if not data:
                            return
                        other[side].sendall(data)
        except OSError:  # the server was killed, or the client went away
            return


def through(url: str, address: tuple[str, int]) -> str:
    """The same address of a service, reached at another host and port."""
    parts = urlsplit(url)
    user = parts.netloc.rpartition("@")[0]
    return urlunsplit(parts._replace(netloc=f"{user}{'@' * bool(user)}{address[0]}:{address[1]}"))


class Host:
    """A network namespace as another machine's network. `gateway` is this machine as it sees it."""

    def __init__(self) -> None:
        if shutil.which("ip") is None:
            pytest.skip("no `ip` command to make a network namespace with")
        number = os.getpid() % 16384
        self.name, self._near, self._far = f"nightmill{number}", f"nmh{number}", f"nmg{number}"
        net = f"10.213.{number // 64}.{number % 64 * 4}"
        prefix, _, last = net.rpartition(".")
        self.gateway, own = f"{prefix}.{int(last) + 1}", f"{prefix}.{int(last) + 2}"
        made = subprocess.run(["ip", "netns", "add", self.name], capture_output=True, text=True, check=False)
        if made.returncode:
            pytest.skip(f"cannot make a network namespace: {made.stderr.strip()}")
        self._ip(f"link add {self._near} type veth peer name {self._far} netns {self.name}")
        self._ip(f"addr add {self.gateway}/30 dev {self._near}")
        self._ip(f"link set {self._near} up")
        self._ip(f"-n {self.name} addr add {own}/30 dev {self._far}")
        self._ip(f"-n {self.name} link set {self._far} up")
        self._ip(f"-n {self.name} link set lo up")

    @property
    def prefix(self) -> tuple[str, ...]:
        """The command that starts a command on this host."""
        return ("ip", "netns", "exec", self.name)

    def cut(self) -> None:
        self._ip(f"link set {self._near} down")

    def heal(self) -> None:
        self._ip(f"link set {self._near} up")

    def remove(self) -> None:
        subprocess.run(["ip", "link", "del", self._near], capture_output=True, check=False)
        subprocess.run(["ip", "netns", "del", self.name], capture_output=True, check=False)

    def _ip(self, words: str) -> None:
        subprocess.run(["ip", *words.split()], check=True, capture_output=True)
