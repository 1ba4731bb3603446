"""The command line as a user runs it, with an engine of a few lines in place of a model.

Each test runs on SQLite with the embedded broker and, where there are servers, on PostgreSQL with a real Redis.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

REPOSITORY = Path(__file__).parents[2]
WAIT_SECONDS = 120.0  # a quiet machine needs a few; processes that start on a busy one, a minute


@dataclass
class CommandLine:
    """Runs `nightmill` with a private home. `started` is every process that was left running on purpose."""

    environment: Mapping[str, str]
    folder: Path
    started: list[subprocess.Popen[str]] = field(default_factory=list)

    def __call__(self, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
        process = self.start(*arguments)
        out, err = process.communicate(timeout=120)
        return subprocess.CompletedProcess(arguments, process.returncode, out, err)

    def start(self, *arguments: str | Path) -> subprocess.Popen[str]:
        """In the background; its output can be read with `communicate`."""
        command = [sys.executable, "-P", "-c", "from api.cli import app; app()", *map(str, arguments)]
        process = subprocess.Popen(
            command, env=self.environment, cwd=self.folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        self.started.append(process)
        return process

    @property
    def home(self) -> Path:
        return Path(self.environment["NIGHTMILL_HOME"])


@pytest.fixture(params=["embedded", "servers"])
def nightmill(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[CommandLine]:
    kept = ("PATH", "HOME", "LANG", "TMPDIR", "SYSTEMROOT")
    environment = {name: os.environ[name] for name in kept if name in os.environ} | {
        "NIGHTMILL_HOME": str(tmp_path / "home"),
        "NIGHTMILL_MODEL": "fake",
        "NIGHTMILL_ENGINE_FACTORY": "tests.worker.fakes:build",
        "NIGHTMILL_SWEEP_SECONDS": "0.5",
        "NIGHTMILL_LEASE_SECONDS": "3",
        "NIGHTMILL_REDISPATCH_SECONDS": "5",
        "PYTHONPATH": str(REPOSITORY),
        "COLUMNS": "300",
    }
    if request.param == "servers":
        environment["DATABASE_URL"] = request.getfixturevalue("empty_postgres_url")
        environment["REDIS_URL"] = request.getfixturevalue("redis_url")
    (tmp_path / "data").mkdir()
    command_line = CommandLine(environment, tmp_path)
    yield command_line
    for process in command_line.started:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            try:
                process.communicate(timeout=40)
            except subprocess.TimeoutExpired:
                process.kill()
        for stream in (process.stdout, process.stderr):
            if stream is not None:
                stream.close()


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """200 rows of id and text; row 7 has no text."""
    return write(tmp_path / "data" / "in.parquet", 200)


def write(path: Path, num_rows: int) -> Path:
    texts = [None if i == 7 else f"text {i}" for i in range(num_rows)]
    pq.write_table(pa.table({"id": list(range(num_rows)), "text": texts}), path)
    return path


def children(process: subprocess.Popen[str]) -> list[psutil.Process]:
    return psutil.Process(process.pid).children(recursive=True)


def named(processes: list[psutil.Process], words: str) -> psutil.Process:
    """The child whose command line has these words; a server may have changed its own."""
    return next(child for child in processes if words in " ".join(child.cmdline()))


def eventually(condition: Callable[[], bool], what: str, seconds: float = WAIT_SECONDS) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds} s: {what}"
        time.sleep(0.05)


def gone(processes: list[psutil.Process]) -> bool:
    return not [child for child in processes if child.is_running() and child.status() != psutil.STATUS_ZOMBIE]
