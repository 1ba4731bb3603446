"""1, 2 and 4 workers on a model that only waits, as one does whose GPU computes: rows per second.

    python -m tests.bench.workers

SQLite, or what --database names, and a Redis of the command's own. Each worker has the same number of rows to do. The
clock runs from the first shard taken up to the end of the job, manifest included, as the ledger has them. Exits with 1
when rows per second grow by less than 0.9 of the number of workers. The worst of the two shares comes last.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from tests.bench.measured import ANSWERED, ASKED, WAIT_ROWS, WAIT_SECONDS
from tests.bench.scale import SETTINGS
from tests.faults.rig import Rig, read
from tests.faults.servers import RedisServer, eventually

LEAST_SHARE = 0.9


def measure(num_workers: int, rows_each: int, database: str) -> float:
    """Rows per second of a job that so many workers share. Raises AssertionError for a wrong row."""
    redis, num_rows = RedisServer(), num_workers * rows_each
    redis.start()
    with tempfile.TemporaryDirectory(prefix="nightmill-workers-") as folder:
        home = Path(folder)
        settings = {**SETTINGS, "shard_rows": 160, "log_level": "info", "worker_threads": 4}
        rig = Rig(home, database or f"sqlite:///{home}/ledger.db", redis.url, 1, settings)
        rig.crew.environment.pop("NIGHTMILL_TEST_ROWS")
        job_id = f"workers{num_workers}"
        try:
            rig.hire(num_workers)
            ready = "worker ready"
            eventually(lambda: rig.crew.log.read_text().count(ready) == num_workers, "all workers are ready", 240)
            texts = [f"{ASKED}{i}" for i in range(num_rows)]
            rig.submit(num_rows, job_id, texts, model="numbers:wait", sampling={"max_tokens": 8})
            job = rig.wait(job_id, 600)
            assert job.status.value == "completed", job.error_message
            rows = read(home / f"{job_id}-out")["output"].to_pylist()
            assert rows == [f"{ANSWERED}{i}" for i in range(num_rows)], "a row is another row's"
        finally:
            rig.close()
            redis.kill()
    assert job.finished_at is not None
    assert job.running_at is not None
    return num_rows / (job.finished_at - job.running_at)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=6_400, help="Rows for each worker.")
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--database", default="", help="Address of an empty PostgreSQL database in place of SQLite.")
    given = parser.parse_args()
    rates = {count: measure(count, given.rows, given.database) for count in given.workers}
    alone = rates[given.workers[0]] / given.workers[0]
    most = WAIT_ROWS / WAIT_SECONDS
    print(f"{'workers':>8} {'rows/s':>8} {'of linear':>10} {'of the engines':>15}")
    for count, rate in rates.items():
        print(f"{count:>8} {rate:>8.0f} {rate / count / alone:>10.2f} {rate / count / most:>15.2f}")
    worst = min(rate / count / alone for count, rate in rates.items())
    print(f"{worst:.2f} of linear at worst")
    return int(worst < LEAST_SHARE)


if __name__ == "__main__":
    sys.exit(main())
