"""Real worker processes on a real Redis, with the fake engine."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from db.models import JobStatus, Shard, ShardStatus
from db.progress import progress
from db.settings import Settings
from tests.worker.factories import Office, spec_of, write_texts

ROOT = Path(__file__).resolve().parents[2]
NUM_ROWS = 1500


class Crew:
    """Worker processes that share a database and a broker, and are all gone at the end."""

    def __init__(self, home: Path, database_url: str, redis_url: str) -> None:
        self.log = home / "worker.log"
        values = {
            "home": home,
            "data_roots": f'["{home}"]',
            "database_url": database_url,
            "redis_url": redis_url,
            "engine_factory": "tests.worker.fakes:build",
            "shard_rows": 500,
            "lease_seconds": 1.5,
            "sweep_seconds": 0.2,
            "worker_threads": 2,
        }
        named = {f"NIGHTMILL_{name.upper()}": str(value) for name, value in values.items()}
        self.environment = {**os.environ, **named, "PYTHONPATH": str(ROOT)}
        self.processes: list[subprocess.Popen[bytes]] = []

    def hire(self) -> subprocess.Popen[bytes]:
        with self.log.open("ab") as log:
            command = [sys.executable, "-m", "worker"]
            process = subprocess.Popen(command, cwd=ROOT, env=self.environment, stdout=log, stderr=log)
        self.processes.append(process)
        return process

    def wait_until(self, condition: Callable[[], bool], seconds: float = 60.0) -> None:
        deadline = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < deadline, self.log.read_text()
            time.sleep(0.05)

    def dismiss(self) -> None:
        for process in self.processes:
            process.kill()
            process.wait()


@pytest.fixture
def office(database_url: str, tmp_path: Path) -> Iterator[Office]:
    """Only submits and looks: it has no queue, so what is done the workers do."""
    made = Office(Settings(home=tmp_path, database_url=database_url))
    yield made
    made.close()


@pytest.fixture
def crew(database_url: str, redis_url: str, tmp_path: Path) -> Iterator[Crew]:
    made = Crew(tmp_path, database_url, redis_url)
    yield made
    made.dismiss()


def check_output(folder: Path) -> None:
    """Every row once, in order, with the answer that the fake model gives."""
    table = pa.concat_tables(pq.read_table(path) for path in sorted(folder.glob("part-*.parquet")))
    assert table["id"].to_pylist() == list(range(NUM_ROWS))
    assert table["output"].to_pylist() == [f"ROW {i}" for i in range(NUM_ROWS)]
    assert sorted(path.name for path in folder.iterdir() if not path.name.startswith("part-")) == [
        "_SUCCESS",
        "_manifest.json",
    ]


def test_a_job_end_to_end(office: Office, crew: Crew, tmp_path: Path) -> None:
    """Nobody sends the first message: the worker's sweep finds the job. SIGTERM then ends the worker cleanly."""
    source = write_texts(tmp_path / "in.parquet", (f"row {i}" for i in range(NUM_ROWS)))
    office.submit(spec_of(source), tmp_path / "out")
    worker = crew.hire()
    crew.wait_until(lambda: office.job().status.terminal)
    assert office.job().status is JobStatus.COMPLETED
    check_output(tmp_path / "out")
    worker.terminate()
    assert worker.wait(10) == 0


def test_kill_9_in_the_middle_of_a_shard(office: Office, crew: Crew, tmp_path: Path) -> None:
    source = write_texts(tmp_path / "in.parquet", (f"row {i}" for i in range(NUM_ROWS)))
    office.submit(spec_of(source, model="fake:slow"), tmp_path / "out")
    worker = crew.hire()

    def in_the_middle() -> bool:
        with office.sessions.begin() as session:
            return 100 < progress(session, ["job"])["job"].rows < NUM_ROWS

    crew.wait_until(in_the_middle)
    worker.send_signal(signal.SIGKILL)
    worker.wait()
    assert not office.job().status.terminal
    crew.hire()
    crew.wait_until(lambda: office.job().status.terminal)
    job = office.job()
    assert (job.status, job.rows_succeeded) == (JobStatus.COMPLETED, NUM_ROWS)
    check_output(tmp_path / "out")
    with office.sessions.begin() as session:
        shards = session.query(Shard).order_by(Shard.index).all()
    assert [shard.status for shard in shards] == [ShardStatus.DONE] * 3
    assert max(shard.attempts for shard in shards) == 2


def test_sigterm_in_the_middle_hands_over_without_an_attempt(office: Office, crew: Crew, tmp_path: Path) -> None:
    source = write_texts(tmp_path / "in.parquet", (f"row {i}" for i in range(NUM_ROWS)))
    office.submit(spec_of(source, model="fake:slow"), tmp_path / "out")
    worker = crew.hire()
    crew.wait_until(lambda: office.job().status is JobStatus.RUNNING)
    time.sleep(0.5)
    worker.terminate()
    assert worker.wait(10) == 0
    with office.sessions.begin() as session:
        shards = session.query(Shard).order_by(Shard.index).all()
    assert ShardStatus.RUNNING not in {shard.status for shard in shards}
    assert max(shard.attempts for shard in shards if shard.status is ShardStatus.PENDING) == 0
    crew.hire()
    crew.wait_until(lambda: office.job().status.terminal)
    check_output(tmp_path / "out")
