"""Whose waiting runs a sweep looks at: every tenant's and schedule's, however many others wait."""

from __future__ import annotations

from pathlib import Path

import pytest
from sqlalchemy import func, select, update

from db import dispatch, dry_runs, schedules
from db.accounts import Tenant
from db.dispatch import Wakeup
from db.models import Job
from db.schedule_models import RunStatus, Schedule, ScheduleRun, Trigger
from db.settings import Settings
from tests.db.ledger import SPEC, Sessions
from tests.db.nights import add, at, spec, sweep, write

NIGHT = at("2026-03-02T02:30")


@pytest.fixture
def bolt(sessions: Sessions, tmp_path: Path) -> str:
    """Another tenant, which may read what the tenant `default` may."""
    with sessions.begin() as session:
        session.add(Tenant(name="bolt", roots=[str(tmp_path)], created_at=0.0))
    return "bolt"


def schedule(sessions: Sessions, folder: Path, name: str, *, tenant: str = "default", file: str = "each") -> str:
    """One whose input is the same file every night, and which fires by itself in a year; its id."""
    write(folder, "each")
    job = {"input": str(folder / "in" / f"{file}.parquet"), "output": str(folder / name / "{{ ts_nodash }}")}
    made = add(sessions, spec(folder, cron="0 0 1 3 *", job=job), NIGHT, name)
    with sessions.begin() as session:
        session.execute(update(Schedule).where(Schedule.id == made).values(tenant=tenant))
    return made


def wait(sessions: Sessions, schedule_id: str, number: int, trigger: Trigger, *, parallel: int = 1) -> None:
    """Add runs that wait, a second apart and later than all others."""
    with sessions.begin() as session:
        held = session.get_one(Schedule, schedule_id)
        num_before = len(session.scalars(select(ScheduleRun.id)).all())
        for i in range(num_before, num_before + number):
            schedules.add_run(session, held, NIGHT - 1000 + i, trigger, parallel=parallel)


def begun(sessions: Sessions, schedule_id: str) -> list[int]:
    """Which of a schedule's runs have a job, by their order."""
    query = select(ScheduleRun.job_id).where(ScheduleRun.schedule_id == schedule_id).order_by(ScheduleRun.fire_at)
    with sessions.begin() as session:
        return [i for i, job_id in enumerate(session.scalars(query)) if job_id is not None]


@pytest.mark.parametrize("tenant", ["bolt", "default"])
def test_a_backfill_keeps_no_other_schedule_from_its_turn(
    sessions: Sessions, settings: Settings, tmp_path: Path, bolt: str, tenant: str
) -> None:
    many = schedule(sessions, tmp_path, "many")
    other = schedule(sessions, tmp_path, "other", tenant=tenant)
    wait(sessions, many, 60, Trigger.BACKFILL, parallel=3)
    wait(sessions, other, 1, Trigger.MANUAL)
    assert sweep(sessions, settings, NIGHT) == 4
    assert (begun(sessions, many), begun(sessions, other)) == ([0, 1, 2], [0])


def test_a_backfill_alone_has_the_whole_sweep(sessions: Sessions, settings: Settings, tmp_path: Path) -> None:
    """Runs whose input is not there fail at once, one after the other."""
    many = schedule(sessions, tmp_path, "many", file="none")
    wait(sessions, many, 30, Trigger.BACKFILL)
    sweep(sessions, settings, NIGHT)
    with sessions.begin() as session:
        found = list(session.scalars(select(ScheduleRun.status).order_by(ScheduleRun.fire_at)))
    assert found == [RunStatus.FAILED] * 20 + [RunStatus.WAITING] * 10


def test_tenants_share_a_sweep(sessions: Sessions, settings: Settings, tmp_path: Path, bolt: str) -> None:
    many = [schedule(sessions, tmp_path, f"many{i}", file="none") for i in range(21)]
    other = schedule(sessions, tmp_path, "other", tenant=bolt)
    for each in (*many, other):
        wait(sessions, each, 1, Trigger.MANUAL)
    assert sweep(sessions, settings, NIGHT) == 1
    assert begun(sessions, other) == [0]


def test_dates_far_from_their_turn_come_last(sessions: Sessions, settings: Settings, tmp_path: Path) -> None:
    """Of 21 backfills the oldest dates were looked at a moment ago, the others never; nothing is due but one run."""
    for i in range(21):
        wait(sessions, schedule(sessions, tmp_path, f"many{i}", file="none"), 2, Trigger.BACKFILL)
    with sessions.begin() as session:
        oldest = select(func.min(ScheduleRun.fire_at)).group_by(ScheduleRun.schedule_id)
        session.execute(update(ScheduleRun).where(ScheduleRun.fire_at.in_(oldest)).values(try_at=NIGHT + 1))
    other = schedule(sessions, tmp_path, "other")
    wait(sessions, other, 1, Trigger.MANUAL)
    assert sweep(sessions, settings, NIGHT) == 1
    assert begun(sessions, other) == [0]


def test_what_waits_for_its_input_is_looked_at_in_turn(sessions: Sessions, settings: Settings, tmp_path: Path) -> None:
    many = schedule(sessions, tmp_path, "many", file="none")
    wait(sessions, many, 25, Trigger.MANUAL)
    sweep(sessions, settings, NIGHT)
    sweep(sessions, settings, NIGHT + 60)  # all of them are due again
    with sessions.begin() as session:
        assert None not in list(session.scalars(select(ScheduleRun.reason)))


def test_a_disabled_tenant_begins_nothing(sessions: Sessions, settings: Settings, tmp_path: Path, bolt: str) -> None:
    theirs = schedule(sessions, tmp_path, "theirs", tenant=bolt)
    wait(sessions, theirs, 2, Trigger.BACKFILL, parallel=2)
    with sessions.begin() as session:
        session.get_one(Tenant, bolt).disabled_at = NIGHT
    assert sweep(sessions, settings, NIGHT + 1) == 0
    with sessions.begin() as session:
        assert session.scalars(select(Job.id)).all() == []
        session.get_one(Tenant, bolt).disabled_at = None
    assert sweep(sessions, settings, NIGHT + 2) == 2  # what waited goes on
    assert begun(sessions, theirs) == [0, 1]


def test_a_disabled_tenant_s_plans_are_not_made(sessions: Sessions, bolt: str) -> None:
    with sessions.begin() as session:
        theirs = [dry_runs.create(session, SPEC, tenant=bolt, num_rows=1, input_version="v", sample_rows=1).id]
        theirs += [dry_runs.create(session, SPEC, tenant=bolt, num_rows=1, input_version="v", sample_rows=1).id]
        ours = dry_runs.create(session, SPEC, tenant="default", num_rows=1, input_version="v", sample_rows=1).id
        session.get_one(Tenant, bolt).disabled_at = NIGHT
    with sessions.begin() as session:
        assert dispatch.due(session, window=4, redispatch_seconds=60) == [Wakeup("plan", ours)]
        session.get_one(Tenant, bolt).disabled_at = None
    with sessions.begin() as session:
        (wakeup,) = dispatch.due(session, window=4, redispatch_seconds=60)
    assert wakeup.id in theirs
