"""Throughput over time: points that are far enough apart, and rates between them."""

from __future__ import annotations

import pytest
from sqlalchemy import func, select, update

from db import samples
from db.models import Job, JobStatus, Shard
from db.progress import Progress
from db.sample_models import JobSample
from db.session import db_now
from db.shards import beat
from tests.db.ledger import Sessions, add_job, take


def record(sessions: Sessions, age: float = 0.0) -> int:
    """Look once; then let that much time pass. How many points there are."""
    with sessions.begin() as session:
        samples.record(session, 60.0)
        count = session.scalar(select(func.count()).select_from(JobSample))
    with sessions.begin() as session:
        session.execute(update(JobSample).values(at=JobSample.at - age))
        session.execute(update(Job).values(running_at=Job.running_at - age))
    return count or 0


def test_points_and_rates(sessions: Sessions) -> None:
    claim = take(sessions, add_job(sessions, shard_rows=100)[0])
    assert record(sessions, 10.0) == 0  # it has just begun
    with sessions.begin() as session:
        beat(
            session, claim, lease_seconds=60, progress=Progress(rows_succeeded=50, prompt_tokens=400, output_tokens=100)
        )
    assert record(sessions, 1.0) == 1
    assert record(sessions, 9.0) == 1  # too soon
    assert record(sessions, 5.0) == 2
    with sessions.begin() as session:
        first, second = samples.points(session, session.get_one(Job, "j"))
    assert first.rows == pytest.approx(5.0, rel=0.2)  # real time passes beside the made up
    assert first.tokens == pytest.approx(50.0, rel=0.2)
    assert (second.rows, second.tokens) == (0.0, 0.0)


def test_a_long_job_has_few_points(sessions: Sessions) -> None:
    """A month, looked at every 25 minutes: every hundredth of the time so far at the most."""
    add_job(sessions)
    with sessions.begin() as session:
        session.execute(update(Job).values(running_at=db_now()))
    counts = [record(sessions, 1500.0) for _ in range(200)]
    assert counts[-1] < 180
    with sessions.begin() as session:
        session.execute(update(Job).values(status=JobStatus.COMPLETED))
    assert record(sessions) == counts[-1]


def test_two_that_look_at_once_add_one_point(sessions: Sessions, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both have seen the same before either wrote."""
    claim = take(sessions, add_job(sessions, shard_rows=100)[0])
    with sessions.begin() as session:
        session.execute(update(Job).values(running_at=db_now() - 10))
        beat(session, claim, lease_seconds=60, progress=Progress(rows_succeeded=5))
    with sessions.begin() as session:
        seen = samples._due(session, float(session.scalar(select(db_now())) or 0.0), 60.0)
    assert list(seen) == ["j"]
    monkeypatch.setattr(samples, "_due", lambda *_: seen)
    assert (record(sessions), record(sessions)) == (1, 1)


def pointed(sessions: Sessions) -> dict[str, int]:
    """How many points each job has that has any."""
    with sessions.begin() as session:
        query = select(JobSample.job_id, func.count()).group_by(JobSample.job_id)
        return {job_id: count for job_id, count in session.execute(query)}  # noqa: C416 - rows are typed only unpacked


def test_of_many_jobs_each_has_its_turn(sessions: Sessions) -> None:
    names = [f"j{place}" for place in range(samples.AT_ONCE + 5)]
    for name in names:
        add_job(sessions, name)
    with sessions.begin() as session:
        session.execute(update(Job).values(running_at=db_now() - 3600))
    for count in (1, 2):
        assert record(sessions) == (count - 1) * len(names) + samples.AT_ONCE
        record(sessions, 120.0)
        assert pointed(sessions) == dict.fromkeys(names, count)


def test_jobs_of_which_nothing_is_told_keep_no_other_from_its_turn(sessions: Sessions) -> None:
    for place in range(samples.AT_ONCE):
        take(sessions, add_job(sessions, f"silent{place}")[0])
    with sessions.begin() as session:
        session.execute(update(Job).values(running_at=db_now() - 3600))
    record(sessions, 120.0)
    with sessions.begin() as session:
        session.execute(update(Shard).values(lease_until=Shard.lease_until - 120))
    loud = take(sessions, add_job(sessions, "loud")[0])
    with sessions.begin() as session:
        session.execute(update(Job).where(Job.id == "loud").values(running_at=db_now() - 60))
        session.add(JobSample(job_id="loud", at=db_now() - 30, rows=1, tokens=1))
        beat(session, loud, lease_seconds=60, progress=Progress(rows_succeeded=5))
    record(sessions)
    assert pointed(sessions) == {**{f"silent{place}": 1 for place in range(samples.AT_ONCE)}, "loud": 2}
