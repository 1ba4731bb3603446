"""Windows of a job: a shard counts once, and there are never more than 24."""

from __future__ import annotations

from sqlalchemy import update

from db import shards, windows
from db.histograms import Percentiles
from db.models import Job
from db.progress import Progress
from db.sample_models import JobWindow
from db.session import db_now
from db.shards import Claim, PartFile
from tests.db.ledger import Sessions, add_job, expire, shard, take
from tests.db.ledger import job as job_of

SECOND = {"steps": 3.0, "histogram.row_latency_seconds.0": 10.0, "histogram.batch_occupancy.25": 0.0}
PART = PartFile("part-00000.parquet", 1, "ab" * 32)


def finish(sessions: Sessions, taken: Claim, counters: dict[str, float] = SECOND) -> bool:
    with sessions.begin() as session:
        progress = Progress(taken.num_rows)
        return shards.finish(session, taken, progress=progress, part=PART, counters=counters).accepted


def age(sessions: Sessions, seconds: float) -> None:
    with sessions.begin() as session:
        session.execute(update(Job).values(running_at=db_now() - seconds))


def found(sessions: Sessions) -> list[windows.Window]:
    with sessions.begin() as session:
        return windows.of(session, session.get_one(Job, "j"))


def test_a_shard_that_is_done_again_counts_once(sessions: Sessions) -> None:
    shard_id = add_job(sessions, num_shards=2)[0]
    zombie = take(sessions, shard_id)
    expire(sessions, shard_id)
    heir = take(sessions, shard_id, owner="heir")
    assert found(sessions) == []
    assert not finish(sessions, zombie)
    assert finish(sessions, heir)
    assert not finish(sessions, heir)
    (window,) = found(sessions)
    assert window.histograms == {"row_latency_seconds": {"0": 10}}
    assert window.percentiles == {"row_latency_seconds": Percentiles(1.0, 1.0, 1.0, 10)}
    assert shard(sessions, shard_id).counters == {"steps": 3.0}  # the buckets are in the window


def test_a_shard_of_which_nothing_was_measured(sessions: Sessions) -> None:
    ids = add_job(sessions, num_shards=2)
    assert finish(sessions, take(sessions, ids[0]), {})
    assert found(sessions) == []
    assert shard(sessions, ids[0]).counters is None


def test_a_long_job_has_few_windows_and_loses_no_count(sessions: Sessions) -> None:
    """A shard every hour for 200 hours."""
    ids = add_job(sessions, num_shards=200)
    for hour, shard_id in enumerate(ids):
        claim = take(sessions, shard_id)
        age(sessions, 3600.0 * (hour + 0.5))
        assert finish(sessions, claim)
        kept = found(sessions)
        assert len(kept) <= windows.MOST
        assert sum(each.histograms["row_latency_seconds"]["0"] for each in kept) == 10 * (hour + 1)
    lengths = {round(each.ended - each.began) for each in kept}
    assert lengths == {60 * 2**9}  # 24 of 8.5 hours reach to the 204th hour
    assert [each.began for each in kept] == sorted(each.began for each in kept)
    assert windows.whole(kept)["row_latency_seconds"] == Percentiles(1.0, 1.0, 1.0, 2000)


def test_windows_go_with_their_job(sessions: Sessions) -> None:
    ids = add_job(sessions, num_shards=1)
    assert finish(sessions, take(sessions, ids[0]))
    with sessions.begin() as session:
        session.delete(session.get_one(Job, "j"))
    with sessions.begin() as session:
        assert session.query(JobWindow).count() == 0


def test_what_two_shards_measured_is_added_up(sessions: Sessions) -> None:
    for shard_id in add_job(sessions, num_shards=2):
        claim = take(sessions, shard_id)
        age(sessions, 61.0)
        finish(sessions, claim)
    (window,) = found(sessions)
    began = job_of(sessions).running_at
    assert began is not None
    assert (round(window.began - began), round(window.ended - began)) == (60, 120)
    assert window.histograms["row_latency_seconds"] == {"0": 20}
