"""Invariant 6: the memory of the worker does not grow with the number of rows."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import psutil
import pytest

from db.models import JobStatus
from db.settings import Settings
from tests.worker.crew import Crew
from tests.worker.factories import Office, spec_of, write_texts

TEXT = "All happy families are alike; each unhappy family is unhappy in its own way. " * 3  # 231 bytes
MOST_GROWTH = 1.10


def peak_bytes(num_rows: int, folder: Path, redis_url: str) -> int:
    """The largest resident set of a fresh worker that does one job of so many rows."""
    folder.mkdir()
    database_url = f"sqlite:///{folder / 'test.db'}"
    office = Office(Settings(home=folder, database_url=database_url))
    crew = Crew(folder, database_url, redis_url)
    source = write_texts(folder / "in.parquet", (f"{i} {TEXT}" for i in range(num_rows)))
    office.submit(spec_of(source, sampling={"max_tokens": 1000}, shard_rows=1000), folder / "out")
    peak, ended = 0, threading.Event()
    worker = psutil.Process(crew.hire().pid)

    def watch() -> None:
        nonlocal peak
        while not ended.is_set():
            peak = max(peak, worker.memory_info().rss)
            time.sleep(0.02)

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        crew.wait_until(lambda: office.job().status.terminal, seconds=120)
    finally:
        ended.set()
        watcher.join()
        crew.dismiss()
        office.close()
    assert (office.job().status, office.job().rows_succeeded) == (JobStatus.COMPLETED, num_rows)
    return peak


def test_memory_does_not_grow_with_the_rows(redis_url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    few = peak_bytes(2_000, tmp_path / "few", redis_url)
    many = peak_bytes(20_000, tmp_path / "many", redis_url)
    with capsys.disabled():
        print(f"\nworker peak: {few / 2**20:.0f} MiB at 2,000 rows, {many / 2**20:.0f} MiB at 20,000 rows")
    assert many < few * MOST_GROWTH
