"""Peak memory of API and worker at 2,000 and at 20,000 rows, through the whole embedded service with a fake model.

    python -m tests.bench.memory

Uploads a file, lets `nightmill up` do it, reads every output row back and compares it with its input row. Exits 1 when
a row is missing, wrong or out of order, or when a peak grows by more than 10 %: the median of three, because a peak is
what several threads happen to need at one moment of the start. Prints the growth last.
"""

from __future__ import annotations

import os
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pyarrow as pa
import pyarrow.parquet as pq

from api.client import Client

ROOT = Path(__file__).resolve().parents[2]
TEXT = "All happy families are alike; each unhappy family is unhappy in its own way. " * 3
MOST_GROWTH = 0.10
REPETITIONS = 3


@dataclass
class Peaks:
    """The largest resident set of each child of a process, by its module's name."""

    parent: psutil.Process
    ended: threading.Event = field(default_factory=threading.Event)
    bytes: dict[str, int] = field(default_factory=dict)

    def watch(self) -> None:
        while not self.ended.wait(0.02):
            for child in self.parent.children(recursive=True):
                try:
                    command = child.cmdline()
                    name = next((name for name in ("api", "worker") if name in command), None)
                    if name:
                        self.bytes[name] = max(self.bytes.get(name, 0), child.memory_info().rss)
                except psutil.NoSuchProcess:
                    continue


@contextmanager
def service(home: Path) -> Iterator[tuple[Client, Peaks]]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("NIGHTMILL_")} | {
        "NIGHTMILL_HOME": str(home),
        "NIGHTMILL_PORT": str(port),
        "NIGHTMILL_MODEL": "fake",
        "NIGHTMILL_SHARD_ROWS": "250",  # enough shards for every task thread in both jobs
        "NIGHTMILL_ENGINE_FACTORY": "tests.worker.fakes:build",
        "PYTHONPATH": str(ROOT),
    }
    command = [sys.executable, "-P", "-c", "from api.cli import app; app()", "up"]
    log = home.with_suffix(".log").open("wb")
    process = subprocess.Popen(command, env=environment, cwd=ROOT, stdout=log, stderr=log)
    peaks = Peaks(psutil.Process(process.pid))
    watcher = threading.Thread(target=peaks.watch)
    watcher.start()
    try:
        with Client(f"http://127.0.0.1:{port}", retries=20) as client:
            yield client, peaks
    finally:
        peaks.ended.set()
        watcher.join()
        process.terminate()
        process.wait(40)
        log.close()


def measure(num_rows: int, folder: Path) -> dict[str, int]:
    """Peaks in bytes of a fresh service that does one job of so many rows. Raises AssertionError on a wrong row."""
    source = folder / f"{num_rows}.parquet"
    texts = [f"{i} {TEXT}" for i in range(num_rows)]
    pq.write_table(pa.table({"id": range(num_rows), "text": texts}), source)
    with service(folder / f"home{num_rows}") as (client, peaks):
        uri = client.upload(source).uri
        sampling = {"max_tokens": 1000}
        recipe = {"kind": "generate", "template": "{{ text }}"}
        job = client.submit({"input": uri, "recipe": recipe, "model": "fake", "sampling": sampling})
        job = client.wait(job.id)
        assert job.status == "completed", f"the job ended as {job.status}: {job.error}"
        rows = [row for batch in client.batches(job.id) for row in batch.to_pylist()]
    assert [row["id"] for row in rows] == list(range(num_rows)), "rows are missing, doubled or out of order"
    assert [row["output"] for row in rows] == [text.upper() for text in texts], "a row has another row's output"
    return peaks.bytes


def median_peaks(num_rows: int) -> dict[str, float]:
    found = []
    for _ in range(REPETITIONS):
        with tempfile.TemporaryDirectory() as folder:
            found.append(measure(num_rows, Path(folder)))
    return {name: statistics.median(peaks[name] for peaks in found) for name in ("api", "worker")}


def main() -> int:
    few, many = (median_peaks(num_rows) for num_rows in (2_000, 20_000))
    growth = {name: many[name] / few[name] - 1 for name in ("api", "worker")}
    for name in growth:
        print(f"{name}: peak {few[name] / 2**20:.0f} MiB at 2,000 rows, {many[name] / 2**20:.0f} MiB at 20,000 rows")
    print(f"growth: API {growth['api']:+.1%}, worker {growth['worker']:+.1%}; 20,000 rows equal and in order")
    return int(max(growth.values()) > MOST_GROWTH)


if __name__ == "__main__":
    sys.exit(main())
