"""Real worker processes on a real Redis, with the fake engine."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from db.models import JobStatus, Shard, ShardStatus
from db.progress import progress
from db.settings import Settings
from db.workers import workers
from tests.worker.crew import Crew
from tests.worker.factories import Office, spec_of, write_texts

NUM_ROWS = 900


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
    with office.sessions.begin() as session:
        assert len(workers(session)) == 1
    worker.terminate()
    assert worker.wait(30) == 0
    with office.sessions.begin() as session:
        assert workers(session) == []  # a plan would count on it


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
    assert max(shard.fence for shard in shards) == 2
    assert max(shard.attempts for shard in shards) == 1  # the attempt before had got on


# Leases and counts are the same on both databases, see test_tasks; here it is about signals and threads.
@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_sigterm_in_the_middle_hands_over_without_an_attempt(office: Office, crew: Crew, tmp_path: Path) -> None:
    source = write_texts(tmp_path / "in.parquet", (f"row {i}" for i in range(NUM_ROWS)))
    office.submit(spec_of(source, model="fake:slow"), tmp_path / "out")
    worker = crew.hire()
    crew.wait_until(lambda: office.job().status is JobStatus.RUNNING)
    time.sleep(0.5)
    worker.terminate()
    assert worker.wait(30) == 0
    with office.sessions.begin() as session:
        shards = session.query(Shard).order_by(Shard.index).all()
    assert ShardStatus.RUNNING not in {shard.status for shard in shards}
    assert max(shard.attempts for shard in shards if shard.status is ShardStatus.PENDING) == 0
    crew.hire()
    crew.wait_until(lambda: office.job().status.terminal)
    check_output(tmp_path / "out")


def test_a_worker_without_its_database_ends(tmp_path: Path) -> None:
    """With the status that asks for another start; Celery itself would go on and take messages for nothing."""
    crew = Crew(tmp_path, "postgresql://nobody@127.0.0.1:1/none", "redis://127.0.0.1:1/0")
    assert crew.hire().wait(120) == 75
    assert "the worker cannot start" in crew.log.read_text()
