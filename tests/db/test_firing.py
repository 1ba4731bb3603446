"""What a schedule does by itself: fire times, missed ones, overlaps, inputs that come late, windows, backfills."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select, update

from db import control, firing, schedules, starting
from db.errors import InvalidSchedule, ScheduleExists, ScheduleNotFound
from db.models import Job, JobStatus
from db.schedule_models import RunStatus, Schedule, ScheduleRun
from db.settings import Settings
from tests.db.ledger import Sessions
from tests.db.nights import DAY, add, at, become, end, job_of, next_at, reasons, runs, spec, sweep, write

NIGHT = at("2026-03-02T02:30")


def test_a_fire_time_becomes_one_dated_job(sessions: Sessions, settings: Settings, tmp_path: Path) -> None:
    write(tmp_path, "2026-03-02", rows=7)
    add(sessions, spec(tmp_path), NIGHT - 3600)
    assert sweep(sessions, settings, NIGHT - 1) == 0
    assert runs(sessions) == []
    assert sweep(sessions, settings, NIGHT) == 1
    assert sweep(sessions, settings, NIGHT + 2) == 0
    assert runs(sessions) == [("03-02", "schedule", "validating")]
    job = job_of(sessions, "03-02")
    assert (job.num_rows, job.output_uri) == (7, str(tmp_path / "out" / "2026-03-02"))
    assert job.spec["input"] == str(tmp_path / "in" / "2026-03-02.parquet")
    assert next_at(sessions) == "2026-03-03T02:30+01:00"


@pytest.mark.parametrize(
    ("misfire", "late", "expected"),
    [
        ("coalesce", 3 * 3600, [("03-04", "schedule", "validating")]),
        ("coalesce", DAY - 1, [("03-04", "schedule", "validating")]),
        ("skip", 3 * 3600, [("03-04", "schedule", "skipped")]),
        ("skip", 30, [("03-03", "schedule", "skipped"), ("03-04", "schedule", "validating")]),
        (
            "all",
            3 * 3600,
            [("03-02", "backfill", "validating"), ("03-03", "backfill", "waiting"), ("03-04", "backfill", "waiting")],
        ),
    ],
)
def test_missed_fire_times(
    sessions: Sessions,
    settings: Settings,
    tmp_path: Path,
    misfire: str,
    late: float,
    expected: list[tuple[str, str, str]],
) -> None:
    """No process lived from the second to the fourth."""
    write(tmp_path, "2026-03-02", "2026-03-03", "2026-03-04")
    add(sessions, spec(tmp_path, misfire=misfire), NIGHT - 3600)
    sweep(sessions, settings, at("2026-03-04T02:30") + late)
    assert runs(sessions) == expected
    assert next_at(sessions) == "2026-03-05T02:30+01:00"


def test_coalesce_says_so_and_forgets_what_is_older_than_a_day(
    sessions: Sessions, settings: Settings, tmp_path: Path
) -> None:
    add(sessions, spec(tmp_path, cron="30 2 * * 1"), NIGHT - 3600)
    sweep(sessions, settings, NIGHT + 2 * DAY)
    assert runs(sessions) == [("03-02", "schedule", "skipped")]
    assert reasons(sessions) == ["missed: no process was there to fire it"]


def test_at_most_ten_are_made_up_for(sessions: Sessions, settings: Settings, tmp_path: Path) -> None:
    add(sessions, spec(tmp_path, misfire="all"), NIGHT - 3600)
    sweep(sessions, settings, NIGHT + 40 * DAY)
    found = runs(sessions)
    assert [kind for _, kind, _ in found] == ["schedule"] + ["backfill"] * 10
    assert found[0][2] == "skipped"
    assert reasons(sessions)[0] == "missed, and every fire time before it: at most 10 are made up for"


def test_overlap_skip(sessions: Sessions, settings: Settings, tmp_path: Path) -> None:
    write(tmp_path, "2026-03-02", "2026-03-03", "2026-03-04")
    add(sessions, spec(tmp_path), NIGHT - 3600)
    for night in range(2):
        sweep(sessions, settings, NIGHT + night * DAY)
    assert runs(sessions) == [("03-02", "schedule", "validating"), ("03-03", "schedule", "skipped")]
    assert reasons(sessions)[1] == "overlap: the run of 2026-03-02T02:30+01:00 goes on"
    end(sessions, "03-02")
    sweep(sessions, settings, NIGHT + 2 * DAY)
    assert runs(sessions)[2] == ("03-04", "schedule", "validating")


def test_overlap_queue(sessions: Sessions, settings: Settings, tmp_path: Path) -> None:
    write(tmp_path, "2026-03-02", "2026-03-03", "2026-03-04")
    add(sessions, spec(tmp_path, overlap="queue"), NIGHT - 3600)
    for night in range(3):
        sweep(sessions, settings, NIGHT + night * DAY)
    assert [status for _, _, status in runs(sessions)] == ["validating", "waiting", "waiting"]
    assert reasons(sessions)[1] == "waits for the run of 2026-03-02T02:30+01:00"
    end(sessions, "03-02", JobStatus.FAILED)
    sweep(sessions, settings, NIGHT + 2 * DAY + 10)
    assert [status for _, _, status in runs(sessions)] == ["failed", "validating", "waiting"]
    end(sessions, "03-03")
    sweep(sessions, settings, NIGHT + 2 * DAY + 20)
    assert [status for _, _, status in runs(sessions)] == ["failed", "completed", "validating"]


def test_overlap_cancel_previous(sessions: Sessions, settings: Settings, tmp_path: Path) -> None:
    write(tmp_path, "2026-03-02", "2026-03-03")
    add(sessions, spec(tmp_path, overlap="cancel_previous"), NIGHT - 3600)
    for night in range(2):
        sweep(sessions, settings, NIGHT + night * DAY)
    assert [status for _, _, status in runs(sessions)] == ["cancelled", "validating"]
    assert reasons(sessions) == ["overlap: replaced by the run of 2026-03-03T02:30+01:00", None]


def test_an_input_that_comes_late_is_waited_for(sessions: Sessions, settings: Settings, tmp_path: Path) -> None:
    add(sessions, spec(tmp_path, grace_seconds=600), NIGHT - 3600)
    sweep(sessions, settings, NIGHT)
    assert runs(sessions) == [("03-02", "schedule", "waiting")]
    assert reasons(sessions) == [f"dataset_refused: '{tmp_path}/in/2026-03-02.parquet' does not exist"]
    write(tmp_path, "2026-03-02")
    assert sweep(sessions, settings, NIGHT + 10) == 0  # not every sweep looks
    assert sweep(sessions, settings, NIGHT + 20) == 1


def test_an_input_that_never_comes_fails_the_run_with_the_reason(
    sessions: Sessions, settings: Settings, tmp_path: Path
) -> None:
    add(sessions, spec(tmp_path, grace_seconds=20), NIGHT - 3600)
    for seconds in (0, 16, 21):
        sweep(sessions, settings, NIGHT + seconds)
    assert runs(sessions) == [("03-02", "schedule", "failed")]
    assert "does not exist" in str(reasons(sessions)[0])
    write(tmp_path, "2026-03-02")
    with sessions.begin() as session:  # Made up for by hand.
        done = schedules.backfill(session, "default", "nightly", date(2026, 3, 2), date(2026, 3, 2))
    assert (len(done.runs), done.num_known) == (1, 0)
    sweep(sessions, settings, NIGHT + 3600)
    assert runs(sessions) == [("03-02", "backfill", "validating")]


def test_a_window_pauses_the_job_and_the_next_night_resumes_it(
    sessions: Sessions, settings: Settings, tmp_path: Path
) -> None:
    write(tmp_path, "2026-03-02", "2026-03-03")
    add(sessions, spec(tmp_path, window_seconds=3600), NIGHT - 3600)
    sweep(sessions, settings, NIGHT)
    become(sessions, "03-02", JobStatus.RUNNING)
    sweep(sessions, settings, NIGHT + 3599)
    assert job_of(sessions, "03-02").status is JobStatus.RUNNING
    sweep(sessions, settings, NIGHT + 3601)
    assert job_of(sessions, "03-02").status is JobStatus.PAUSED
    sweep(sessions, settings, NIGHT + DAY)
    assert runs(sessions) == [("03-02", "schedule", "validating"), ("03-03", "schedule", "skipped")]
    sweep(sessions, settings, NIGHT + DAY + 3601)
    assert job_of(sessions, "03-02").status is JobStatus.PAUSED


@pytest.mark.parametrize("overlap", ["skip", "queue"])
def test_a_window_that_ended_while_nobody_swept_costs_no_night(
    sessions: Sessions, settings: Settings, tmp_path: Path, overlap: str
) -> None:
    """The machine is off from before the window's end until after the next fire time."""
    write(tmp_path, "2026-03-02", "2026-03-03")
    add(sessions, spec(tmp_path, window_seconds=3600, overlap=overlap), NIGHT - 3600)
    sweep(sessions, settings, NIGHT)
    become(sessions, "03-02", JobStatus.RUNNING)
    sweep(sessions, settings, NIGHT + 3500)
    for late in (10, 12, 600, 3599):
        sweep(sessions, settings, NIGHT + DAY + late)
        assert job_of(sessions, "03-02").status is JobStatus.RUNNING
    sweep(sessions, settings, NIGHT + DAY + 3600)
    assert job_of(sessions, "03-02").status is JobStatus.PAUSED


def test_two_processes_that_close_and_replace_do_not_wait_for_each_other(
    sessions: Sessions, settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One replaces the earlier run, which takes its job; the other closes that run's window meanwhile."""
    write(tmp_path, "2026-03-02", "2026-03-03")
    add(sessions, spec(tmp_path, window_seconds=3600, overlap="cancel_previous"), NIGHT - 3600)
    sweep(sessions, settings, NIGHT)
    become(sessions, "03-02", JobStatus.RUNNING)
    now = NIGHT + DAY + 5
    with sessions.begin() as session:
        schedule, window = session.scalars(select(Schedule)).one(), session.scalars(select(ScheduleRun.id)).one()
    firing.fire(sessions, schedule, now)
    with sessions.begin() as session:
        (run,) = session.scalars(select(ScheduleRun).where(ScheduleRun.status == RunStatus.WAITING))
        session.execute(update(ScheduleRun).where(ScheduleRun.id == window).values(window_until=NIGHT + 3600))
    cancel, cancelled = control.cancel, threading.Event()

    def slow(*given: Any) -> Job:
        changed = cancel(*given)
        cancelled.set()
        time.sleep(0.5)
        return changed

    monkeypatch.setattr(control, "cancel", slow)

    def close() -> None:
        assert cancelled.wait(20)
        with sessions.begin() as session:
            firing._close_window(session, window, now)

    with ThreadPoolExecutor(2) as pool:
        started, closed = pool.submit(starting.start, sessions, settings, run, now), pool.submit(close)
        assert started.result(60)
        closed.result(60)
    assert job_of(sessions, "03-02").status is JobStatus.CANCELLED


def test_a_window_leaves_alone_what_a_person_paused(sessions: Sessions, settings: Settings, tmp_path: Path) -> None:
    write(tmp_path, "2026-03-02")
    add(sessions, spec(tmp_path, window_seconds=3600), NIGHT - 3600)
    sweep(sessions, settings, NIGHT)
    with sessions.begin() as session:
        control.pause(session, str(session.scalar(select(Job.id))), "default")
    sweep(sessions, settings, NIGHT + 3601)
    sweep(sessions, settings, NIGHT + DAY)
    assert job_of(sessions, "03-02").status is JobStatus.PAUSED


def test_start_and_end(sessions: Sessions, settings: Settings, tmp_path: Path) -> None:
    write(tmp_path, "2026-03-03")
    made = spec(tmp_path, start_at="2099-03-03T02:30:00+01:00", end_at="2099-03-04T02:00:00+01:00")
    add(sessions, made, NIGHT)
    assert next_at(sessions) == "2099-03-03T02:30+01:00"
    sweep(sessions, settings, at("2099-03-03T02:30"))
    assert next_at(sessions) is None
    sweep(sessions, settings, at("2099-03-09T02:30"))
    assert len(runs(sessions)) == 1


def test_pause_and_resume_make_up_for_nothing(sessions: Sessions, settings: Settings, tmp_path: Path) -> None:
    add(sessions, spec(tmp_path), NIGHT - 3600)
    with sessions.begin() as session:
        schedules.pause(session, "default", "nightly")
    sweep(sessions, settings, NIGHT + 5)
    assert runs(sessions) == []
    with sessions.begin() as session:
        assert schedules.resume(session, "default", "nightly").next_at == spec(tmp_path).first_after(
            schedules.now_of(session)
        )
    assert runs(sessions) == []


def test_run_now_goes_beside_others_and_once_per_key(sessions: Sessions, settings: Settings, tmp_path: Path) -> None:
    made = spec(tmp_path, job={"input": str(tmp_path / "in"), "output": str(tmp_path / "out" / "{{ ts_nodash }}")})
    write(tmp_path, "a")
    add(sessions, made, NIGHT - 3600)
    sweep(sessions, settings, NIGHT)
    with sessions.begin() as session:
        ids = [schedules.run_now(session, "default", "nightly", key="k")[0].id for _ in range(2)]
    assert ids[0] == ids[1]
    sweep(sessions, settings, NIGHT + 60)
    assert [(kind, status) for _, kind, status in runs(sessions)] == [
        ("schedule", "validating"),
        ("manual", "validating"),
    ]


def test_names_and_deletion(sessions: Sessions, settings: Settings, tmp_path: Path) -> None:
    write(tmp_path, "2026-03-02")
    schedule_id = add(sessions, spec(tmp_path), NIGHT - 3600)
    sweep(sessions, settings, NIGHT)
    with sessions.begin() as session:
        known, created = schedules.create(session, "default", "nightly", spec(tmp_path))  # a request sent twice
        assert (known.id, created) == (schedule_id, False)
    with sessions.begin() as session, pytest.raises(ScheduleExists, match="'nightly' already"):
        schedules.create(session, "default", "nightly", spec(tmp_path, overlap="queue"))
    with sessions.begin() as session:
        schedules.delete(session, "default", schedule_id)
    with sessions.begin() as session, pytest.raises(ScheduleNotFound, match="'nightly'"):
        schedules.get(session, "default", "nightly")
    with sessions.begin() as session:
        assert session.scalars(select(ScheduleRun)).all() == []
        assert session.scalars(select(Job)).one().status is JobStatus.VALIDATING


@pytest.mark.parametrize(
    ("values", "field"),
    [
        ({"job": {"output": "/data/out"}}, "job.output"),
        ({"cron": "0 * * * *"}, "job.output"),
        ({"job": {"input": "/data/{{ dss }}"}}, "job.input"),
        ({"job": {"input": "/data/{{ ds.__class__ }}"}}, "job.input"),
        ({"job": {"input": "/data/{% for x in y %}"}}, "job.input"),
        ({"window_seconds": DAY}, "window_seconds"),
        ({"start_at": "2030-01-02T00:00:00Z", "end_at": "2030-01-01T00:00:00Z"}, "end_at"),
        ({"end_at": "2020-01-01T00:00:00Z"}, "end_at"),
    ],
)
def test_what_a_schedule_cannot_be(sessions: Sessions, tmp_path: Path, values: dict[str, object], field: str) -> None:
    with sessions.begin() as session, pytest.raises(InvalidSchedule, match=f"^{field}: "):
        schedules.create(session, "default", "nightly", spec(tmp_path, **values))
