"""Throughput over time: points that are far enough apart, and rates between them."""

from __future__ import annotations

import pytest
from sqlalchemy import func, select, update

from db import samples
from db.models import Job, JobStatus
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
