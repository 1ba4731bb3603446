"""How many jobs of a tenant run at once, however often they are paused and resumed."""

from __future__ import annotations

from pathlib import Path

from sqlalchemy import update

from db import control, dispatch, phases
from db.accounts import DEFAULT, Tenant
from db.errors import QuotaExceeded
from db.models import Job, JobStatus
from db.plans import ShardPlan
from db.settings import Settings
from tests.db import ledger, nights
from tests.db.ledger import Sessions, add_job, job, together
from tests.db.nights import DAY, at
from tests.db.test_dispatch import validating

NIGHT = at("2026-03-02T02:30")


def limit(sessions: Sessions, most: int | None) -> None:
    with sessions.begin() as session:
        session.execute(update(Tenant).where(Tenant.name == DEFAULT).values(max_running_jobs=most))


def pause(sessions: Sessions, job_id: str) -> None:
    with sessions.begin() as session:
        control.pause(session, job_id, DEFAULT)


def resume(sessions: Sessions, job_id: str) -> bool:
    """Whether there was room."""
    try:
        with sessions.begin() as session:
            control.resume(session, job_id, DEFAULT)
    except QuotaExceeded:
        return False
    return True


def splits(sessions: Sessions, lying: int = 0) -> list[int | str]:
    with sessions.begin() as session:
        found = dispatch.due(session, window=4, redispatch_seconds=60, lying=lying)
    return [wakeup.id for wakeup in found if wakeup.task == "split"]


def split(sessions: Sessions, job_id: str) -> None:
    """As the message that woke a worker makes it do."""
    with sessions.begin() as session:
        begun = phases.begin_split(session, job_id, 3)
        assert begun is not None
        plans = [ShardPlan(0, "/data/in.parquet", 0, begun.num_rows, 0)]
        assert phases.finish_split(session, begun, prepared={}, shards=plans)


def test_a_job_is_resumed_when_there_is_room(sessions: Sessions) -> None:
    limit(sessions, 1)
    for name in "ab":
        add_job(sessions, name)
        pause(sessions, name)
    assert resume(sessions, "a")
    assert resume(sessions, "a")  # it runs already
    assert not resume(sessions, "b")
    assert job(sessions, "b").status is JobStatus.PAUSED
    pause(sessions, "a")
    assert resume(sessions, "b")
    limit(sessions, None)
    assert resume(sessions, "a")


def test_two_that_are_resumed_at_once_are_counted_one_after_the_other(sessions: Sessions) -> None:
    limit(sessions, 1)
    for name in "abc":
        add_job(sessions, name)
        pause(sessions, name)
    assert sorted(together(3, lambda number: resume(sessions, "abc"[number]))) == [False, False, True]


def test_a_split_that_was_sent_counts_although_it_was_paused(sessions: Sessions) -> None:
    """Its message lies in the broker, and wakes a worker whenever one has time."""
    limit(sessions, 1)
    for name in "ab":
        validating(sessions, name)
        assert splits(sessions) == [name]
        pause(sessions, name)
    assert resume(sessions, "a")
    assert not resume(sessions, "b")
    assert splits(sessions, lying=dispatch.ENOUGH) == ["a"]  # Workers may have been woken in vain meanwhile.
    split(sessions, "a")
    assert not resume(sessions, "b")


def test_a_job_that_was_not_begun_waits_again(sessions: Sessions) -> None:
    limit(sessions, 1)
    add_job(sessions, "a")
    validating(sessions, "b")
    pause(sessions, "b")
    assert resume(sessions, "b")
    assert (job(sessions, "b").status, splits(sessions)) == (JobStatus.VALIDATING, [])
    pause(sessions, "a")
    assert splits(sessions) == ["b"]
    assert not resume(sessions, "a")


def closed(sessions: Sessions, settings: Settings, folder: Path) -> str:
    """A job that its schedule's window has paused."""
    nights.write(folder, "2026-03-02")
    nights.add(sessions, nights.spec(folder, window_seconds=3600), NIGHT - 3600)
    nights.sweep(sessions, settings, NIGHT)
    name = nights.job_of(sessions, "03-02").id
    split(sessions, name)
    nights.sweep(sessions, settings, NIGHT + 3601)
    return name


def test_a_window_that_finds_no_room_resumes_its_job_once_there_is(
    sessions: Sessions, settings: Settings, tmp_path: Path
) -> None:
    name = closed(sessions, settings, tmp_path)
    limit(sessions, 1)
    add_job(sessions, "other")

    def status(now: float) -> JobStatus:
        nights.sweep(sessions, settings, now)
        return job(sessions, name).status

    assert status(NIGHT + DAY) is JobStatus.PAUSED
    assert status(NIGHT + DAY + 2) is JobStatus.PAUSED
    assert nights.next_at(sessions) == "2026-03-04T02:30+01:00"  # The fire time was taken all the same.
    pause(sessions, "other")
    assert status(NIGHT + DAY + 4) is JobStatus.RUNNING
    assert not resume(sessions, "other")
    assert status(NIGHT + DAY + 3601) is JobStatus.PAUSED
    # A night without any room: the next one has its turn.
    assert resume(sessions, "other")
    assert [status(NIGHT + 2 * DAY + later) for later in (0, 2, 3601)] == [JobStatus.PAUSED] * 3
    with sessions.begin() as session:
        session.execute(update(Job).where(Job.id == "other").values(status=JobStatus.COMPLETED))
    assert status(NIGHT + 2 * DAY + 3700) is JobStatus.PAUSED
    assert status(NIGHT + 3 * DAY) is JobStatus.RUNNING


def test_a_job_that_a_person_resumed_has_no_window_any_more(
    sessions: Sessions, settings: Settings, tmp_path: Path
) -> None:
    name = closed(sessions, settings, tmp_path)
    assert resume(sessions, name)
    for now in (NIGHT + DAY, NIGHT + DAY + 3601):
        nights.sweep(sessions, settings, now)
        assert ledger.job(sessions, name).status is JobStatus.RUNNING
