"""Backfills, and runs that build on each other."""

from __future__ import annotations

from datetime import date
from pathlib import Path

import pytest
from sqlalchemy import update

from db import schedules
from db.errors import InvalidSchedule
from db.schedule_models import Schedule
from db.settings import Settings
from tests.db.ledger import Sessions
from tests.db.nights import DAY, add, at, end, runs, spec, sweep, write

NIGHT = at("2026-03-02T02:30")


def test_backfill_is_oldest_first_and_bounded(sessions: Sessions, settings: Settings, tmp_path: Path) -> None:
    days = [f"2026-03-0{day}" for day in range(1, 6)]
    write(tmp_path, *days)
    add(sessions, spec(tmp_path), NIGHT - 3600)
    sweep(sessions, settings, NIGHT)
    with sessions.begin() as session:
        done = schedules.backfill(session, "default", "nightly", date(2026, 3, 1), date(2026, 3, 5), parallel=2)
    assert (len(done.runs), done.num_known) == (4, 1)
    now = NIGHT + 6 * DAY
    with sessions.begin() as session:
        schedules.pause(session, "default", "nightly")
    for _ in range(3):
        now += 10
        sweep(sessions, settings, now)
    statuses = ["validating", "validating", "validating", "waiting", "waiting"]
    assert [status for _, _, status in runs(sessions)] == statuses
    end(sessions, "03-01")
    sweep(sessions, settings, now + 10)
    assert [status for _, _, status in runs(sessions)] == [
        "completed",
        "validating",
        "validating",
        "validating",
        "waiting",
    ]
    with sessions.begin() as session:
        again = schedules.backfill(session, "default", "nightly", date(2026, 3, 1), date(2026, 3, 5))
    assert (len(again.runs), again.num_known) == (0, 5)


def test_a_schedule_that_breaks_leaves_the_others_alone(
    sessions: Sessions, settings: Settings, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write(tmp_path, "2026-03-02")
    broken = add(sessions, spec(tmp_path), NIGHT - 7200, "broken")
    add(sessions, spec(tmp_path, job={"output": str(tmp_path / "other" / "{{ ds }}")}), NIGHT - 3600)
    with sessions.begin() as session:
        session.execute(update(Schedule).where(Schedule.id == broken).values(spec={"of": "another version"}))
    assert sweep(sessions, settings, NIGHT) == 1
    assert f"schedule {broken} broke" in caplog.text
    assert runs(sessions) == [("03-02", "schedule", "validating")]


@pytest.mark.parametrize(
    ("first", "last", "parallel", "field"),
    [
        (date(2026, 3, 5), date(2026, 3, 1), 1, "last"),
        (date(2026, 3, 5), date(2999, 1, 1), 1, "last"),
        (date(2020, 1, 1), date(2026, 1, 1), 1, "last"),
        (date(2026, 3, 1), date(2026, 3, 2), 2, "parallel"),
    ],
)
def test_what_a_backfill_cannot_be(
    sessions: Sessions, tmp_path: Path, first: date, last: date, parallel: int, field: str
) -> None:
    add(sessions, spec(tmp_path, job={"only_new": {}}), NIGHT)
    with sessions.begin() as session, pytest.raises(InvalidSchedule, match=f"^{field}: "):
        schedules.backfill(session, "default", "nightly", first, last, parallel=parallel)


def test_runs_of_new_rows_go_one_at_a_time(sessions: Sessions, settings: Settings, tmp_path: Path) -> None:
    write(tmp_path, "2026-03-01", "2026-03-02")
    add(sessions, spec(tmp_path, job={"only_new": {}}, overlap="queue"), NIGHT - 3600)
    with sessions.begin() as session:
        schedules.backfill(session, "default", "nightly", date(2026, 3, 1), date(2026, 3, 1))
    sweep(sessions, settings, NIGHT - 10)
    sweep(sessions, settings, NIGHT)
    assert [status for _, _, status in runs(sessions)] == ["validating", "waiting"]
    end(sessions, "03-01")
    sweep(sessions, settings, NIGHT + 10)
    assert [status for _, _, status in runs(sessions)] == ["completed", "validating"]
