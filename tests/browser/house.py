"""A running service with something to look at, and a headless Chromium."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from api.client import Client
from api.embedded.lock import running

REPOSITORY = Path(__file__).parents[2]
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
# As root, as in a container, Chromium has no sandbox; it sees this service alone.
CHROMIUM_OPTIONS = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]


def chromium() -> str | None:
    """The browser's path: NIGHTMILL_TEST_CHROMIUM, or what is installed."""
    named = os.environ.get("NIGHTMILL_TEST_CHROMIUM")
    return named or next((path for name in NAMES if (path := shutil.which(name))), None)


@contextmanager
def service(folder: Path) -> Iterator[str]:
    """`nightmill up` with an engine of a few lines; its address. Datasets lie in folder/data."""
    data = folder / "data"
    data.mkdir()
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "LANG", "TMPDIR") if name in os.environ}
    environment = kept | {
        "NIGHTMILL_HOME": str(folder / "home"),
        "NIGHTMILL_MODEL": "fake",
        "NIGHTMILL_ENGINE_FACTORY": "tests.worker.fakes:build",
        "NIGHTMILL_SWEEP_SECONDS": "0.5",
        "NIGHTMILL_DATA_ROOTS": json.dumps([str(data)]),
        "PYTHONPATH": str(REPOSITORY),
    }
    command = [sys.executable, "-P", "-c", "from api.cli import app; app()", "up", "--port", "0"]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
        try:
            deadline = time.monotonic() + 90
            while (found := running(folder / "home")) is None:
                assert process.poll() is None, (folder / "log").read_text()
                assert time.monotonic() < deadline, (folder / "log").read_text()
                time.sleep(0.1)
            yield found.url
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(60)


def write(path: Path, num_rows: int) -> Path:
    """Rows of id and text; every 20th has no text, which its job tells as an error row."""
    texts = [
        None if i % 20 == 7 else f"Ticket {i}: the night train to the coast was late again" for i in range(num_rows)
    ]
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table({"id": list(range(num_rows)), "text": texts}), path)
    return path


def furnish(url: str, folder: Path) -> dict[str, str]:
    """Jobs that ended, one that goes on, a plan, and schedules with a history; ids by what they are."""
    data, shout = folder / "data", {"kind": "generate", "template": "{{ text }}"}
    today = datetime.now(UTC).date()
    for day in range(1, 15):
        write(data / "tickets" / f"{today - timedelta(days=day)}.parquet", 0 if day % 6 == 5 else 30)
    (data / "tickets" / f"{today - timedelta(days=4)}.parquet").unlink()
    with Client(url) as client:
        done = client.submit({"input": str(write(data / "done.parquet", 400)), "recipe": shout, "shard_rows": 100})
        client.wait(done.id)
        plan = client.plan({"input": str(data / "done.parquet"), "recipe": shout, "model": "fake:slow"})
        slow = write(data / "slow.parquet", 60_000)
        live = client.submit({"input": str(slow), "recipe": shout, "model": "fake:slow", "shard_rows": 200})
        job = {
            "input": str(data / "tickets" / "{{ ds }}.parquet"),
            "output": str(data / "out" / "{{ ds }}"),
            "recipe": shout,
        }
        client.schedules.create({"name": "tickets", "cron": "30 2 * * *", "timezone": "Europe/Berlin", "job": job})
        client.schedules.backfill("tickets", today - timedelta(days=14), today - timedelta(days=1), parallel=4)
        client.schedules.create(
            {"name": "weekly-report", "cron": "0 6 * * 1", "job": {**job, "output": str(data / "weekly" / "{{ ds }}")}}
        )
        client.schedules.pause("weekly-report")
    return {"done": done.id, "live": live.id, "plan": plan.id}
