"""Short ways to a job in a given state."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from sqlalchemy import select, update
from sqlalchemy.orm import Session, sessionmaker

from db import jobs, phases, shards
from db.models import Job, Shard, ShardStatus
from db.plans import ShardPlan
from db.progress import Progress
from db.session import db_now
from db.shards import Claim, Finish, PartFile
from db.specs import JobSpec, Summarize

T = TypeVar("T")
Sessions = sessionmaker[Session]
SPEC = JobSpec(input="/data/in.parquet", recipe=Summarize(), model="m")


def add_job(sessions: Sessions, job_id: str = "j", *, num_shards: int = 1, shard_rows: int = 10) -> list[int]:
    """A RUNNING job of equal shards; their ids in order."""
    with sessions.begin() as session:
        num_rows = num_shards * shard_rows
        jobs.create(
            session,
            SPEC,
            tenant="default",
            job_id=job_id,
            output_uri=f"/out/{job_id}",
            num_rows=num_rows,
            idempotency_key=None,
        )
        job = phases.begin_split(session, job_id, 3)
        assert job is not None
        plans = [
            ShardPlan(i, "/data/in.parquet", i * shard_rows, (i + 1) * shard_rows, i * shard_rows)
            for i in range(num_shards)
        ]
        assert phases.finish_split(session, job, prepared={"prior": [0.5]}, shards=plans)
        return list(session.scalars(select(Shard.id).where(Shard.job_id == job_id).order_by(Shard.index)))


def claim(
    sessions: Sessions, shard_id: int, *, owner: str = "w", lease: float = 60.0, attempts: int = 3
) -> Claim | None:
    with sessions.begin() as session:
        return shards.claim(session, shard_id, owner=owner, lease_seconds=lease, max_attempts=attempts)


def take(sessions: Sessions, shard_id: int, *, owner: str = "w", lease: float = 60.0) -> Claim:
    taken = claim(sessions, shard_id, owner=owner, lease=lease)
    assert taken is not None
    return taken


def finish(sessions: Sessions, taken: Claim, *, failed: int = 0) -> Finish:
    progress = Progress(taken.num_rows - failed, failed, 100, 40, 20)
    part = PartFile(f"part-{taken.index:05d}.parquet", 1234, "ab" * 32)
    with sessions.begin() as session:
        return shards.finish(session, taken, progress=progress, part=part)


def expire(sessions: Sessions, shard_id: int) -> None:
    """Let the lease of a running shard be dead for a second."""
    with sessions.begin() as session:
        session.execute(update(Shard).where(Shard.id == shard_id).values(lease_until=db_now() - 1.0))


def job(sessions: Sessions, job_id: str = "j") -> Job:
    with sessions.begin() as session:
        return jobs.get(session, job_id, "default")


def shard(sessions: Sessions, shard_id: int) -> Shard:
    with sessions.begin() as session:
        return session.get_one(Shard, shard_id)


def statuses(sessions: Sessions, job_id: str = "j") -> list[ShardStatus]:
    with sessions.begin() as session:
        return list(session.scalars(select(Shard.status).where(Shard.job_id == job_id).order_by(Shard.index)))


def together(count: int, call: Callable[[int], T]) -> list[T]:
    """call(0) … call(count - 1) in threads that set off at one moment."""
    barrier = threading.Barrier(count)

    def start(number: int) -> T:
        barrier.wait(30)
        return call(number)

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(start, range(count)))
