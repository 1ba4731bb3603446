"""A service whose parts can be killed, and a checker that knows every answer and trusts nothing that was counted."""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from sqlalchemy.exc import SQLAlchemyError

from db.models import Job
from db.settings import Settings
from db.stores import Place, S3Path
from tests.faults.servers import eventually, free_port
from tests.s3_server import KEYS, get, keys, put
from tests.worker.crew import ROOT, Crew
from tests.worker.factories import Office, spec_of, write_texts


@dataclass
class Rig:
    """A ledger, a queue and workers. `office` submits and looks; it never works."""

    home: Path
    database_url: str
    redis_url: str
    seed: int
    settings: dict[str, object] = field(default_factory=dict)
    bucket: S3Path | None = None  # where inputs and outputs lie; None: below `home`
    office: Office = field(init=False)
    crew: Crew = field(init=False)
    random: random.Random = field(init=False)
    api: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        roots = (self.home,) if self.bucket is None else (self.home, str(self.bucket))
        endpoint = "" if self.bucket is None else self.bucket.service.endpoint
        settings = Settings(
            home=self.home, database_url=self.database_url, data_roots=roots, shard_rows=200, s3_endpoint=endpoint
        )
        self.office = Office(settings)
        own = {"shard_rows": 200, "NIGHTMILL_TEST_ROWS": self.home / "rows.log", "log_level": "info"}
        if self.bucket is not None:
            own |= {"data_roots": json.dumps([str(root) for root in roots]), "s3_checkpoint_seconds": 0.2, **KEYS}
            own["s3_endpoint"] = endpoint
        own |= self.settings
        self.crew = Crew(self.home, self.database_url, str(own.pop("redis_url", self.redis_url)), **own)

    # -- what is done to it ------------------------------------------------------------------------------------------

    def submit(self, num_rows: int, job_id: str = "job", texts: Sequence[str] | None = None, **spec: object) -> Job:
        rows = [f"{job_id} row {i}" for i in range(num_rows)] if texts is None else texts
        source = self.lay(write_texts(self.home / f"{job_id}.parquet", rows))
        values = {"model": "fake:slow", **spec}
        return self.office.submit(spec_of(source, **values), self.place(f"{job_id}-out"), job_id)

    def place(self, name: str) -> Place:
        """Where an input or an output of this name lies: in the bucket, or below `home`."""
        return (self.home if self.bucket is None else self.bucket) / name

    def lay(self, source: Path) -> Place:
        """Put a file or folder of `home` where the service reads it, again if it has changed; its place there."""
        there = self.place(source.name)
        if isinstance(there, S3Path):
            for path in filter(Path.is_file, source.rglob("*")) if source.is_dir() else [source]:
                put(there / path.relative_to(source).as_posix() if source.is_dir() else there, path.read_bytes())
        return there

    def hire(self, count: int = 1) -> None:
        for _ in range(count):
            self.crew.hire()

    def kill(self, place: int = -1) -> None:
        """kill -9 a worker, and hire another in its place."""
        worker = self.crew.processes.pop(place)
        worker.kill()
        worker.wait()
        self.crew.hire()

    def serve(self) -> str:
        """Start an API process; its address."""
        port = free_port()
        environment = {**self.crew.environment, "NIGHTMILL_PORT": str(port)}
        with self.crew.log.open("ab") as log:
            command = [sys.executable, "-m", "api"]
            self.api.append(subprocess.Popen(command, cwd=ROOT, env=environment, stdout=log, stderr=log))
        url = f"http://127.0.0.1:{port}"
        eventually(lambda: answers(f"{url}/healthz"), "the API answers", 120)
        return url

    def close(self) -> None:
        for process in self.api:
            process.kill()
            process.wait()
        self.crew.dismiss()
        self.office.close()

    # -- what is seen of it ------------------------------------------------------------------------------------------

    def done(self, job_id: str = "job") -> int:
        """Rows that the engine has computed so far."""
        return sum(self.computed(job_id).values())

    def computed(self, job_id: str = "job") -> Counter[int]:
        """How often each row was computed, from the engines' own log."""
        path = self.home / "rows.log"
        if not path.exists():
            return Counter()
        lines = (line.split() for line in path.read_text().splitlines())
        return Counter(int(line[1]) for line in lines if len(line) == 2 and line[0] == job_id)

    def wait(self, job_id: str = "job", seconds: float = 400.0) -> Job:
        eventually(lambda: self._ended(job_id), f"{job_id} ends", seconds)
        return self.office.job(job_id)

    def output(self, name: str = "job-out") -> Path:
        """A folder of outputs as it is now; what lies in the bucket is copied here to be looked at."""
        if self.bucket is not None:
            mirror(self.bucket / name, self.home / name)
        return self.home / name

    def _ended(self, job_id: str) -> bool:
        try:
            return self.office.job(job_id).status.terminal
        except SQLAlchemyError:  # the database may be away
            return False

    def wait_rows(self, count: int, job_id: str = "job", seconds: float = 240.0) -> None:
        eventually(lambda: self.done(job_id) >= count, f"{count} rows of {job_id} are computed", seconds)

    def check(self, num_rows: int, job_id: str = "job") -> Outcome:
        """Every row of a completed job, in `job_id`-out, against the answer that it must have."""
        expected = [f"{job_id} row {i}".upper() for i in range(num_rows)]
        table = read(self.output(f"{job_id}-out"))
        seen = Counter(table["id"].to_pylist())
        assert table["id"].to_pylist() == sorted(seen.elements()), "rows are out of order"
        wrong = [i for i, text in zip(table["id"].to_pylist(), table["output"].to_pylist(), strict=True)
                 if text != expected[i]]  # fmt: skip
        assert wrong == [], f"other answers than undisturbed: {wrong[:10]}"
        again = sum(count - 1 for count in self.computed(job_id).values())
        lost = sum(1 for i in range(num_rows) if not seen[i])
        return Outcome(num_rows, lost, sum(count - 1 for count in seen.values()), again)


@dataclass(frozen=True)
class Outcome:
    """In rows. `redone`: computed again after they had been computed once."""

    num_rows: int
    lost: int
    doubled: int
    redone: int


def mirror(folder: S3Path, here: Path) -> None:
    """Copy all that lies below a folder of a bucket, so that it can be looked at like any other."""
    shutil.rmtree(here, ignore_errors=True)
    for name in keys(folder):
        (here / name).parent.mkdir(parents=True, exist_ok=True)
        (here / name).write_bytes(get(folder / name))


def read(folder: Path) -> pa.Table:
    return pa.concat_tables(pq.read_table(path) for path in sorted(folder.glob("part-*.parquet")))


def answers(url: str) -> bool:
    try:
        return httpx.get(url, timeout=2).status_code == 200
    except httpx.HTTPError:
        return False


def on_disks(reason: str) -> pytest.MarkDecorator:
    """A test that says nothing about buckets, and why."""
    return pytest.mark.skipif(IN_BUCKETS, reason=f"about local disks: {reason}")


def timed(act: Callable[[], None]) -> float:
    start = time.monotonic()
    act()
    return time.monotonic() - start


IN_BUCKETS = os.environ.get("NIGHTMILL_FAULTS_STORE") == "s3"  # every test's inputs and outputs
SEED = int(os.environ.get("NIGHTMILL_FAULT_SEED", "0")) or random.SystemRandom().randrange(1, 1 << 31)
