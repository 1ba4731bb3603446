"""Ends of jobs from the ledger: which moments count, and what is known of the shards at work."""

from __future__ import annotations

import pytest
from sqlalchemy import select, update

from db import control, ends, jobs, samples
from db.eta import End
from db.models import Job, JobStatus, Shard, Worker
from db.progress import Progress, progress
from db.sample_models import JobSample
from db.session import db_now
from db.shards import beat
from db.workers import worker_seen
from tests.db.ledger import SPEC, Sessions, add_job, finish, take

LEASE = 60.0


def reckon(sessions: Sessions, lease: float = LEASE) -> End | None:
    with sessions.begin() as session:
        job = jobs.get(session, "j", "default")
        now = float(session.scalar(select(db_now())) or 0.0)
        return ends.ends(session, [job], progress(session, ["j"]), now, lease).get("j")


def age(sessions: Sessions, seconds: float) -> None:
    """Let that much time pass."""
    with sessions.begin() as session:
        session.execute(update(JobSample).values(at=JobSample.at - seconds))
        session.execute(update(Shard).values(lease_until=Shard.lease_until - seconds))
        session.execute(update(Job).values(running_at=Job.running_at - seconds, resumed_at=Job.resumed_at - seconds))


def sized(sessions: Sessions, *sizes: int) -> list[int]:
    """A job of shards of ten rows and so many bytes."""
    ids = add_job(sessions, num_shards=len(sizes))
    with sessions.begin() as session:
        for shard_id, size in zip(ids, sizes, strict=True):
            session.execute(update(Shard).where(Shard.id == shard_id).values(input_bytes=size))
        session.execute(update(Job).values(input_bytes=sum(sizes)))
    return ids


def clock(sessions: Sessions) -> float:
    """The ledger's, in seconds since 1970."""
    with sessions.begin() as session:
        return float(session.scalar(select(db_now())) or 0.0)


def test_bytes_of_shards_that_are_done_and_at_work(sessions: Sessions) -> None:
    ids = sized(sessions, 100, 50, 1000)
    finish(sessions, take(sessions, ids[0]))
    claim = take(sessions, ids[1])
    with sessions.begin() as session:
        beat(session, claim, lease_seconds=60, progress=Progress(rows_succeeded=3, rows_failed=1))
    with sessions.begin() as session:
        assert (work := ends.at_work(session, ["j"], LEASE)["j"])
        assert (work.bytes_done, work.open_rows) == (100 + 20, 6)
        assert work.reported_at == pytest.approx(session.scalar(select(db_now())), abs=2)
        samples.record(session, LEASE)
    age(sessions, 5.0)
    with sessions.begin() as session:
        samples.record(session, LEASE)
        kept = session.scalars(select(JobSample)).one()
        assert (kept.rows, kept.bytes) == (14, 120)


def test_a_job_that_is_under_way(sessions: Sessions) -> None:
    """Two of three shards in a minute: half a minute is left by rows, and five by what the third one has to read."""
    ids = sized(sessions, 100, 100, 1000)
    assert reckon(sessions) is None
    first = take(sessions, ids[0])
    assert reckon(sessions) is None
    for claim in (first, take(sessions, ids[1])):
        age(sessions, 30.0)
        finish(sessions, claim)
        with sessions.begin() as session:
            samples.record(session, LEASE)
    end = reckon(sessions)
    assert end is not None
    now = clock(sessions)
    assert now + 30 < end.at < now + 300
    assert end.earliest < now + 60
    assert end.latest > now + 300
    with sessions.begin() as session:
        control.pause(session, "j", "default")
    assert reckon(sessions) is None


def test_a_pause_is_no_pace(sessions: Sessions) -> None:
    """A minute of work, an hour's pause, and as much work again: no hour is left for the other half."""
    ids = add_job(sessions, num_shards=4)
    for place, shard_id in enumerate(ids[:2]):
        if place:
            with sessions.begin() as session:
                control.pause(session, "j", "default")
            age(sessions, 3600.0)
            with sessions.begin() as session:
                control.resume(session, "j", "default")
            with sessions.begin() as session:
                samples.record(session, LEASE)
            assert reckon(sessions) is None  # it begins anew
        claim = take(sessions, shard_id)
        age(sessions, 60.0)
        finish(sessions, claim)
        with sessions.begin() as session:
            samples.record(session, LEASE)
    end = reckon(sessions)
    assert end is not None
    now = clock(sessions)
    assert end.at - now == pytest.approx(120, rel=0.1)


def test_rows_in_the_engines_of_its_model(sessions: Sessions) -> None:
    ids = add_job(sessions, num_shards=2, shard_rows=100)
    claim = take(sessions, ids[0])
    age(sessions, 41.0)
    with sessions.begin() as session:
        beat(session, claim, lease_seconds=30, progress=Progress(rows_succeeded=40))
    before = reckon(sessions, 30.0)
    with sessions.begin() as session:
        worker_seen(session, "w1", SPEC.model, {"running": 40})
        worker_seen(session, "w2", "another", {"running": 1000})
        worker_seen(session, "w3", SPEC.model, {})
        worker_seen(session, "w4", SPEC.model, {"running": 1000})  # it was killed, and its lease is dead
        session.execute(update(Worker).where(Worker.name == "w4").values(seen_at=db_now() - 31))
    after = reckon(sessions, 30.0)
    assert before is not None
    assert after is not None
    # 160 seconds' work is left; with 20 rows' work in the engine beyond what is done, 140 rows at 40 s for 60.
    assert after.at - before.at == pytest.approx(140 * 40 / 60 - 160, abs=3)


def test_jobs_that_have_ended_have_no_end_to_come(sessions: Sessions) -> None:
    claim = take(sessions, add_job(sessions)[0])
    age(sessions, 10.0)
    finish(sessions, claim)
    assert reckon(sessions) is not None  # the manifest is to be written
    with sessions.begin() as session:
        session.execute(update(Job).values(status=JobStatus.COMPLETED))
    assert reckon(sessions) is None
