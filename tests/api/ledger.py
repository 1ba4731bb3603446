"""What a worker does to a job, as short functions, and input to submit."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from sqlalchemy import select

from api.deps import Services
from db import jobs, phases, shards
from db.models import Shard
from db.plans import ShardPlan
from db.progress import Progress
from db.shards import Claim, PartFile


def eventually(condition: Callable[[], bool]) -> None:
    """Wait for what another thread does."""
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def write(path: Path, num_rows: int) -> Path:
    messages = [[{"role": "user", "content": f"text {i}"}] for i in range(num_rows)]
    columns: dict[str, Any] = {
        "id": list(range(num_rows)),
        "text": [f"text {i}" for i in range(num_rows)],
        "label": ["x"] * num_rows,
        "messages": messages,
    }
    pq.write_table(pa.table(columns), path)
    return path


def summarize(path: Path, **others: Any) -> dict[str, Any]:
    """The smallest job."""
    return {"input": str(path), "recipe": {"kind": "summarize"}, **others}


def split(services: Services, job_id: str, rows: tuple[int, ...]) -> list[Claim]:
    """What a worker does first: shards of these many rows, each taken up."""
    stops = [sum(rows[: i + 1]) for i in range(len(rows))]
    plans = [
        ShardPlan(index=i, file="f", start_row=stop - size, stop_row=stop, first_row=stop - size)
        for i, (stop, size) in enumerate(zip(stops, rows, strict=True))
    ]
    with services.sessions.begin() as session:
        job = phases.begin_split(session, job_id, 3)
        assert job is not None
        assert phases.finish_split(session, job, prepared={}, shards=plans)
    claims = []
    with services.sessions.begin() as session:
        for shard_id in session.scalars(select(Shard.id).where(Shard.job_id == job_id).order_by(Shard.index)):
            claim = shards.claim(session, shard_id, owner="w", lease_seconds=60, max_attempts=3)
            assert claim is not None
            claims.append(claim)
    return claims


def finish(
    services: Services, claim: Claim, content: bytes, failed: int = 0, counters: dict[str, float] | None = None
) -> None:
    """What a worker does last: the part is there, then the ledger says so."""
    folder = Path(claim.output_uri)
    folder.mkdir(parents=True, exist_ok=True)
    name = f"part-{claim.index:05}.parquet"
    (folder / name).write_bytes(content)
    done = Progress(claim.stop_row - claim.start_row - failed, failed, 30, 10, 6)
    part = PartFile(name, len(content), hashlib.sha256(content).hexdigest())
    with services.sessions.begin() as session:
        assert shards.finish(session, claim, progress=done, part=part, counters=counters).accepted


def merge(services: Services, job_id: str) -> None:
    with services.sessions.begin() as session:
        folder = Path(jobs.get(session, job_id, "default").output_uri)
        (folder / "_manifest.json").write_text("{}")
        (folder / "_SUCCESS").write_text("")
        assert jobs.complete(session, job_id) is not None
