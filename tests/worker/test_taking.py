"""Taking up a shard: a worker that was overtaken takes the next one, as its message is gone."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from sqlalchemy import select, update
from sqlalchemy.orm import Session

from db import shards, turns
from db.models import JobStatus, Shard, ShardStatus
from tests.worker.factories import Office, spec_of, write_texts
from worker.run import run

THREADS = 4


def add_shards(office: Office, folder: Path, num_shards: int) -> None:
    """A job whose shards of one row were all sent."""
    source = write_texts(folder / "in.parquet", (f"row {i}" for i in range(num_shards)))
    office.submit(spec_of(source, shard_rows=1), folder / "out")
    office.work(until=lambda wakeup: wakeup.task == "run")
    with office.sessions.begin() as session:
        session.execute(update(Shard).values(dispatched_at=1.0))


def statuses(office: Office) -> list[ShardStatus]:
    with office.sessions.begin() as session:
        return list(session.scalars(select(Shard.status).order_by(Shard.index)))


class Rival:
    """Another worker, which takes what was chosen before the choice is claimed, so many times."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, times: int) -> None:
        self.chosen: list[int | None] = []
        self._times = times
        self._choose = turns.choose
        monkeypatch.setattr(turns, "choose", self.choose)

    def choose(self, session: Session) -> int | None:
        shard_id = self._choose(session)
        if shard_id is not None and len(self.chosen) < self._times:
            assert shards.claim(session, shard_id, owner="rival", lease_seconds=60, max_attempts=2) is not None
        self.chosen.append(shard_id)
        return shard_id


def test_who_was_overtaken_takes_the_next_one(office: Office, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    add_shards(office, tmp_path, 3)
    rival = Rival(monkeypatch, 2)
    run(office.process)
    assert statuses(office) == [ShardStatus.RUNNING, ShardStatus.RUNNING, ShardStatus.DONE]
    assert len(set(rival.chosen)) == len(rival.chosen) == 3


def test_who_was_overtaken_everywhere_ends(office: Office, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    add_shards(office, tmp_path, 2)
    rival = Rival(monkeypatch, 2)
    run(office.process)
    assert statuses(office) == [ShardStatus.RUNNING] * 2
    assert rival.chosen[-1] is None
    assert len(rival.chosen) == 3


def test_a_worker_that_is_to_end_looks_no_further(
    office: Office, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_shards(office, tmp_path, 2)
    rival = Rival(monkeypatch, 1)
    office.process.drain.set()
    run(office.process)
    assert statuses(office) == [ShardStatus.RUNNING, ShardStatus.PENDING]
    assert len(rival.chosen) == 1


def test_a_shard_that_was_tried_too_often_does_not_use_up_the_message(office: Office, tmp_path: Path) -> None:
    """It fails, its job with it, and another job's shard is taken up."""
    add_shards(office, tmp_path, 2)
    dead = {"status": ShardStatus.RUNNING, "owner": "dead", "attempts": 2, "lease_until": 1.0}
    with office.sessions.begin() as session:
        session.execute(update(Shard).where(Shard.index == 0).values(**dead))
    office.submit(spec_of(write_texts(tmp_path / "other.parquet", ["row"])), tmp_path / "other", "other")
    office.sent.clear()
    office.work(until=lambda wakeup: wakeup.task == "run")
    run(office.process)
    assert office.job().status is JobStatus.FAILED
    assert statuses(office) == [ShardStatus.FAILED, ShardStatus.DONE, ShardStatus.CANCELLED]


@pytest.mark.parametrize("database_url", ["postgres"], indirect=True)
def test_threads_that_choose_together_take_a_shard_each(
    office: Office, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SQLite lets one at a time choose and claim."""
    add_shards(office, tmp_path, THREADS)
    choose, together, here = turns.choose, threading.Barrier(THREADS, timeout=20), threading.local()

    def meeting(session: Session) -> int | None:
        shard_id = choose(session)
        if not hasattr(here, "met"):
            here.met = True
            together.wait()
        return shard_id

    monkeypatch.setattr(turns, "choose", meeting)
    threads = [threading.Thread(target=run, args=(office.process,)) for _ in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert statuses(office) == [ShardStatus.DONE] * THREADS
