"""Runs that compute only what earlier runs of their schedule have not: exactly those rows, counted, and in order."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from sqlalchemy import select, update

from db import firing, schedules
from db.models import Job, JobStatus
from db.schedule_models import ScheduleRun
from db.schedule_specs import ScheduleSpec
from tests.worker.factories import ECHO, Office
from worker.new_rows import digests

DAY = 86_400.0
NIGHT = datetime(2026, 3, 2, 2, 30, tzinfo=UTC).timestamp()


def add(office: Office, folder: Path, **only_new: Any) -> None:
    job = {
        "input": str(folder / "in"),
        "output": str(folder / "out" / "{{ ds }}"),
        "recipe": ECHO,
        "model": "fake",
        "sampling": {"max_tokens": 100},
        "only_new": only_new,
    }
    with office.sessions.begin() as session:
        spec = ScheduleSpec.model_validate({"cron": "30 2 * * *", "job": job})
        schedules.create(session, "default", "nightly", spec)[0].next_at = NIGHT


def night(office: Office, number: int) -> None:
    """The run of the night, from firing to its end."""
    firing.sweep(office.sessions, office.process.settings, clock=lambda session: NIGHT + number * DAY)
    office.work()


def write(folder: Path, name: str, rows: list[tuple[object, object]]) -> None:
    (folder / "in").mkdir(exist_ok=True)
    table = pa.table({"id": [row[0] for row in rows], "text": [row[1] for row in rows]})
    pq.write_table(table, folder / "in" / f"{name}.parquet")


def outputs(folder: Path, day: str) -> list[str | None]:
    parts = sorted((folder / "out" / day).glob("part-*.parquet"))
    return [text for part in parts for text in pq.read_table(part, columns=["output"]).column(0).to_pylist()]


def counts(office: Office) -> list[tuple[int | None, int | None, int, str]]:
    """Rows of the input, those known before, those of the job, and its status, by night."""
    query = select(ScheduleRun, Job).join(Job, Job.id == ScheduleRun.job_id).order_by(ScheduleRun.fire_at)
    with office.sessions.begin() as session:
        return [
            (run.rows_input, run.rows_skipped, job.num_rows, job.status.value) for run, job in session.execute(query)
        ]


@pytest.mark.parametrize("only_new", [{"key": "id"}, {}])
def test_the_second_night_computes_the_added_rows_alone(
    office: Office, tmp_path: Path, only_new: dict[str, str]
) -> None:
    add(office, tmp_path, **only_new)
    write(tmp_path, "a", [(i, f"text {i}") for i in range(150)])
    night(office, 0)
    write(tmp_path, "b", [(i, f"text {i}") for i in range(140, 170)])
    night(office, 1)
    night(office, 2)
    assert counts(office) == [
        (150, 0, 150, "completed"),
        (180, 160, 20, "completed"),
        (180, 180, 0, "completed"),
    ]
    assert outputs(tmp_path, "2026-03-02") == [f"TEXT {i}" for i in range(150)]
    assert outputs(tmp_path, "2026-03-03") == [f"TEXT {i}" for i in range(150, 170)]
    assert outputs(tmp_path, "2026-03-04") == []
    manifest = json.loads((tmp_path / "out" / "2026-03-03" / "_manifest.json").read_text())
    assert manifest["new_rows"] == {"input": 180, "computed": 20, "skipped": 160, "without_key": 0}
    assert manifest["rows"]["input"] == 20


def test_by_key_a_changed_row_is_known_and_by_row_it_is_new(office: Office, tmp_path: Path) -> None:
    add(office, tmp_path)
    write(tmp_path, "a", [(1, "one"), (2, "two")])
    night(office, 0)
    write(tmp_path, "a", [(1, "one"), (2, "two again")])
    night(office, 1)
    assert outputs(tmp_path, "2026-03-03") == ["TWO AGAIN"]


def test_rows_that_a_failed_run_had_are_new_again(office: Office, tmp_path: Path) -> None:
    add(office, tmp_path, key="id")
    write(tmp_path, "a", [(1, "one"), (2, "two")])
    night(office, 0)
    with office.sessions.begin() as session:
        session.execute(update(Job).values(status=JobStatus.CANCELLED))
    night(office, 1)
    assert counts(office)[1] == (2, 0, 2, "completed")
    assert outputs(tmp_path, "2026-03-03") == ["ONE", "TWO"]


def test_equal_rows_of_one_input_are_all_computed_and_rows_without_key_always(office: Office, tmp_path: Path) -> None:
    add(office, tmp_path, key="id")
    write(tmp_path, "a", [(1, "one"), (1, "one too"), (None, "none")])
    night(office, 0)
    night(office, 1)
    assert outputs(tmp_path, "2026-03-02") == ["ONE", "ONE TOO", "NONE"]
    assert outputs(tmp_path, "2026-03-03") == ["NONE"]
    assert counts(office)[1][:3] == (3, 2, 1)


def test_a_lost_ledger_fails_the_run_by_name(office: Office, tmp_path: Path) -> None:
    add(office, tmp_path, key="id")
    write(tmp_path, "a", [(1, "one")])
    night(office, 0)
    lost = tmp_path / "out" / "2026-03-02" / "_new" / "keys.parquet"
    lost.unlink()
    night(office, 1)
    with office.sessions.begin() as session:
        failed = session.scalars(select(Job).where(Job.status == JobStatus.FAILED)).one()
    assert failed.error_code == "ledger_missing"
    assert str(lost) in str(failed.error_message)
    assert "put it back" in str(failed.error_message)


def test_a_split_that_broke_is_done_again(office: Office, tmp_path: Path) -> None:
    """Its new rows lie in the output already, which is otherwise demanded to be empty."""
    add(office, tmp_path, key="id")
    write(tmp_path, "a", [(1, "one"), (2, "two")])
    firing.sweep(office.sessions, office.process.settings, clock=lambda session: NIGHT)
    (tmp_path / "out" / "2026-03-02" / "_new").mkdir(parents=True)
    with office.sessions.begin() as session:
        session.execute(update(Job).values(fence=1))  # an attempt was made
    office.work()
    assert outputs(tmp_path, "2026-03-02") == ["ONE", "TWO"]


def test_a_deleted_schedule_fails_the_split(office: Office, tmp_path: Path) -> None:
    add(office, tmp_path, key="id")
    write(tmp_path, "a", [(1, "one")])
    firing.sweep(office.sessions, office.process.settings, clock=lambda session: NIGHT)
    with office.sessions.begin() as session:
        schedules.delete(session, "default", "nightly")
    office.work()
    with office.sessions.begin() as session:
        job = session.scalars(select(Job)).one()
    assert (job.status, job.error_code) == (JobStatus.FAILED, "invalid_job")


def test_digests_tell_apart_types_nulls_and_columns_but_not_their_order() -> None:
    def digest(key: str | None = None, **columns: pa.Array[Any]) -> bytes | None:
        return digests(pa.record_batch(list(columns.values()), names=list(columns)), key)[0]

    one = digest(a=pa.array([1]), b=pa.array(["x"]))
    assert one == digest(b=pa.array(["x"]), a=pa.array([1], pa.int8()))
    assert one != digest(a=pa.array(["1"]), b=pa.array(["x"]))
    assert one != digest(a=pa.array([1]), c=pa.array(["x"]))
    assert digest(a=pa.array(["None"])) != digest(a=pa.array([None], pa.string()))
    assert digest("a", a=pa.array([None], pa.string())) is None
    nanoseconds = pa.array([1_700_000_000_000_000_001], pa.timestamp("ns", "Europe/Berlin"))
    assert digest("a", a=nanoseconds) != digest("a", a=pa.array([1_700_000_000_000_000_002], pa.timestamp("ns")))
    nested = pa.array([{"days": [date(2026, 3, 1)], "tags": None}])
    assert digest(a=nested) == digest(a=nested)
