"""Five million short rows through the service on a model that computes nothing: memory, and what a row costs.

    python -m tests.bench.scale

An API, one worker and a Redis of the command's own, SQLite. Tokenisation is off (measured.py): what is measured
is reading, rendering, the way to the engine and back, writing and committing. Every output row is compared. Draws the
memory of API, Redis and worker over the run as docs/scale.svg.

Exits with 1 when a row is wrong, when API or Redis grow by more than 10 % between the second and the last tenth of the
run, or with fewer than 20,000 rows per second of the worker's processor time. The figure comes last.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import psutil
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tests.bench.curves import svg
from tests.bench.measured import ANSWERED, ASKED
from tests.faults.rig import Rig
from tests.faults.servers import RedisServer, eventually
from tests.worker.factories import ECHO

ROOT = Path(__file__).resolve().parents[2]
ROW_GROUP = 100_000
MOST_GROWTH = 0.10
LEAST_ROWS_PER_CORE = 20_000
SETTINGS = {
    "engine_factory": "tests.bench.measured:build",
    "engine_max_sequences": 256,
    "shard_rows": 20_000,
    "lease_seconds": 30,
    "sweep_seconds": 2,
    "redispatch_seconds": 60,
    "log_level": "warning",
}


@dataclass(frozen=True)
class Sample:
    """At one moment of the run: rows done, and the resident memory of each process in bytes."""

    rows: int
    api: int
    redis: int
    worker: int


def write_input(path: Path, num_rows: int) -> None:
    schema = pa.schema([("id", pa.int64()), ("text", pa.string())])
    with pq.ParquetWriter(path, schema, compression="zstd") as writer:
        for first in range(0, num_rows, ROW_GROUP):
            ids = pa.array(range(first, min(first + ROW_GROUP, num_rows)), pa.int64())
            writer.write_table(pa.table([ids, joined(ASKED, ids)], schema))


def joined(prefix: str, ids: pa.Array) -> pa.Array:
    return pc.binary_join_element_wise(prefix, pc.cast(ids, pa.string()), "")


def watch(url: str, job_id: str, processes: tuple[psutil.Process, ...], pause: float) -> Iterator[Sample]:
    while True:
        job = httpx.get(f"{url}/v1/jobs/{job_id}", timeout=60).json()
        yield Sample(job["counts"]["succeeded"], *(process.memory_info().rss for process in processes))
        if job["status"] in ("completed", "completed_with_errors", "failed"):
            assert job["status"] == "completed", job
            return
        time.sleep(pause)


def wrong_rows(folder: Path, num_rows: int) -> int:
    """Rows that are missing, out of order, or another row's."""
    first = wrong = 0
    for part in sorted(folder.glob("part-*.parquet")):
        table = pq.read_table(part, columns=["id", "output"])
        expected = pa.array(range(first, first + table.num_rows), pa.int64())
        answers = table["output"].combine_chunks().cast(pa.string())
        right = pc.and_(pc.equal(table["id"].combine_chunks(), expected), pc.equal(answers, joined(ANSWERED, expected)))
        wrong += table.num_rows - (pc.sum(right).as_py() or 0)
        first += table.num_rows
    return wrong + abs(num_rows - first)


def growth(samples: list[Sample], name: str) -> float:
    """From the second tenth of the run to its last one; in the first one, everything is loaded that is needed."""
    values = [getattr(sample, name) for sample in samples]
    tenth = max(len(values) // 10, 1)
    return statistics.median(values[-tenth:]) / statistics.median(values[tenth : 2 * tenth]) - 1


def draw(samples: list[Sample]) -> str:
    millions = [sample.rows / 1e6 for sample in samples]
    curves = {name: [getattr(sample, name) / 2**20 for sample in samples] for name in ("api", "redis", "worker")}
    named = {f"{name}, at most {max(values):.0f} MiB": values for name, values in curves.items()}
    return svg("Resident memory in MiB", "million rows done", millions, named)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=5_000_000)
    parser.add_argument("--threads", type=int, default=2, help="Task threads of the worker.")
    parser.add_argument("--picture", type=Path, default=ROOT / "docs" / "scale.svg")
    given = parser.parse_args()
    redis = RedisServer()
    redis.start()
    with tempfile.TemporaryDirectory(prefix="nightmill-scale-") as folder:
        home = Path(folder)
        write_input(home / "in.parquet", given.rows)
        settings = {**SETTINGS, "worker_threads": given.threads}
        rig = Rig(home, f"sqlite:///{home}/ledger.db", redis.url, 1, settings)
        rig.crew.environment.pop("NIGHTMILL_TEST_ROWS")
        try:
            url = rig.serve()
            worker = psutil.Process(rig.crew.hire().pid)
            eventually(lambda: bool(httpx.get(f"{url}/v1/workers", timeout=60).json()["workers"]), "a worker", 120)
            processes = (psutil.Process(rig.api[0].pid), psutil.Process(redis.pid), worker)
            before, started = worker.cpu_times(), time.monotonic()
            body = {"input": str(home / "in.parquet"), "output": str(home / "out"), "model": "numbers", "recipe": ECHO}
            answer = httpx.post(f"{url}/v1/jobs", json={**body, "sampling": {"max_tokens": 8}}, timeout=60)
            assert answer.status_code == 202, answer.text
            samples = list(watch(url, answer.json()["id"], processes, max(given.rows / 1e6, 0.5)))
            after, seconds = worker.cpu_times(), time.monotonic() - started
        finally:
            rig.close()
            redis.kill()
        wrong = wrong_rows(home / "out", given.rows)
    given.picture.write_text(draw(samples))
    for sample in samples[:: max(len(samples) // 20, 1)]:
        sizes = (f"{name} {getattr(sample, name) / 2**20:6.1f} MiB" for name in ("api", "redis", "worker"))
        print(f"{sample.rows:>10,} rows  " + "  ".join(sizes))
    spent = (after.user + after.system) - (before.user + before.system)
    grown = {name: growth(samples, name) for name in ("api", "redis", "worker")}
    print(f"{given.rows / seconds:,.0f} rows per second of the clock, {wrong} rows wrong; growth "
          + ", ".join(f"{name} {share:+.1%}" for name, share in grown.items()))  # fmt: skip
    rate = given.rows / spent
    print(f"{rate:,.0f} rows per second of the worker's processor time")
    flat = max(grown["api"], grown["redis"]) <= MOST_GROWTH
    return 0 if not wrong and flat and rate >= LEAST_ROWS_PER_CORE else 1


if __name__ == "__main__":
    sys.exit(main())
