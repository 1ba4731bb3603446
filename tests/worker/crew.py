"""Real worker processes for tests."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


class Crew:
    """Worker processes that share a database and a broker, and are all gone at the end."""

    def __init__(self, home: Path, database_url: str, redis_url: str, **settings: object) -> None:
        """`settings` beside those that make tests quick; NAME in capitals is a variable of the environment itself."""
        self.log = home / "worker.log"
        values = {
            "home": home,
            "data_roots": f'["{home}"]',
            "database_url": database_url,
            "redis_url": redis_url,
            "engine_factory": "tests.worker.fakes:build",
            "shard_rows": 300,
            "lease_seconds": 1.5,
            "sweep_seconds": 0.2,
            "redispatch_seconds": 5,  # another test run may empty the same Redis
            "worker_threads": 2,
            "retry_seconds": 0.1,
            **settings,
        }
        named = {name if name.isupper() else f"NIGHTMILL_{name.upper()}": str(value) for name, value in values.items()}
        self.environment = {**os.environ, **named, "PYTHONPATH": str(ROOT)}
        self.processes: list[subprocess.Popen[bytes]] = []

    def hire(self, *prefix: str, **environment: str) -> subprocess.Popen[bytes]:
        """Start a worker; `prefix` is the command that starts its command, `environment` comes on top of ours."""
        with self.log.open("ab") as log:
            command = [*prefix, sys.executable, "-m", "worker"]
            own = {**self.environment, **environment}
            process = subprocess.Popen(command, cwd=ROOT, env=own, stdout=log, stderr=log)
        self.processes.append(process)
        return process

    def wait_until(self, condition: Callable[[], bool], seconds: float = 60.0) -> None:
        deadline = time.monotonic() + seconds
        while not condition():
            assert self.processes[-1].poll() is None, self.log.read_text()
            assert time.monotonic() < deadline, self.log.read_text()
            time.sleep(0.05)

    def dismiss(self) -> None:
        for process in self.processes:
            process.kill()
            process.wait()
