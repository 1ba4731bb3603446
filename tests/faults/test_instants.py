"""Faults at one chosen instant, two holders of one shard, signals that come twice, clocks that are wrong."""

from __future__ import annotations

import signal
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select, update

import worker.merge
import worker.run
from db import control
from db.errors import JobNotCancellable
from db.models import JobStatus, Shard, ShardStatus
from tests.faults.points import POINTS
from tests.faults.rig import Outcome, Rig, on_disks, read
from tests.faults.servers import eventually
from tests.faults.tally import Report
from tests.faults.test_workers import completed

pytestmark = pytest.mark.faults
RigOn = Callable[..., Rig]


@pytest.mark.parametrize("point", POINTS)
def test_kill_9_at_an_instant(rig_on: RigOn, report: Report, point: str) -> None:
    """What was published is adopted: no row is computed again because the ledger did not hear of it."""
    rig = rig_on(engine_factory="tests.faults.points:build", worker_threads=1)
    once = rig.home / "once"
    rig.crew.environment |= {"NIGHTMILL_TEST_POINT": point, "NIGHTMILL_TEST_POINT_ONCE": str(once)}
    rig.submit(300)
    rig.hire()
    eventually(lambda: rig.crew.processes[0].poll() is not None, "the worker dies", 180)
    assert once.exists()
    died = time.monotonic()
    rig.hire()
    outcome = completed(rig, 300)
    assert outcome.redone == 0
    report.add(f"{point}, its row in the ledger not written", outcome, time.monotonic() - died, number=16)


@pytest.mark.parametrize("what", ["cancel", "expire", "pause"])
def test_a_word_between_the_part_and_the_ledger(
    rig_on: RigOn, report: Report, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = rig_on()
    act: Callable[..., Any] = getattr(control, what)
    made: list[str] = []
    real = worker.run.make

    def make(*arguments: Any) -> Any:
        done = real(*arguments)
        if not made:
            made.append(done.part.name)
            with rig.office.sessions.begin() as session:
                act(session, "job", *([] if what == "expire" else ["default"]))
        return done

    monkeypatch.setattr(worker.run, "make", make)
    rig.submit(600, model="fake")
    rig.office.work()
    job = rig.office.job()
    if what == "pause":
        assert (job.status, job.rows_succeeded, made) == (JobStatus.PAUSED, 200, ["part-00000.parquet"])
        with rig.office.sessions.begin() as session:
            control.resume(session, "job", "default")
        rig.office.work()
        outcome = completed(rig, 600)
    else:
        assert job.status is (JobStatus.CANCELLED if what == "cancel" else JobStatus.EXPIRED)
        rows = read(rig.output()).to_pylist()
        assert [row["output"] for row in rows[:200]] == [f"JOB ROW {i}" for i in range(200)]
        assert [row["id"] for row in rows] == list(range(200 if what == "cancel" else 600))
        assert job.rows_succeeded == 200
        outcome = Outcome(len(rows), 0, 0, 0)
    report.add(f"{what} between the part and the ledger", outcome, number=11)


def test_cancel_before_the_split_while_finalizing_and_at_the_end(
    rig_on: RigOn, report: Report, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = rig_on()
    rig.submit(100, "early", model="fake")
    with rig.office.sessions.begin() as session:
        assert control.cancel(session, "early", "default").status is JobStatus.CANCELLED
    rig.office.work()
    assert not rig.output("early-out").exists()
    refused: list[JobStatus] = []
    real = worker.merge._merge

    def merge(process: Any, job: Any) -> None:
        real(process, job)
        refused.append(refusal(rig))

    monkeypatch.setattr(worker.merge, "_merge", merge)
    rig.submit(300, model="fake")
    rig.office.work()
    outcome = completed(rig, 300)
    refused.append(refusal(rig))
    assert refused == [JobStatus.FINALIZING, JobStatus.COMPLETED]
    report.add("cancel while queued, while finalizing, at the end", outcome, number=11)


def refusal(rig: Rig) -> JobStatus:
    with rig.office.sessions.begin() as session, pytest.raises(JobNotCancellable):
        control.cancel(session, "job", "default")
    return rig.office.job().status


def test_two_workers_forced_onto_one_shard(rig_on: RigOn, report: Report) -> None:
    """Leases are torn from their holders, who find out at their next write and have published nothing by then."""
    rig = rig_on(lease_seconds=30, redispatch_seconds=0.3)
    rig.submit(2000)
    rig.hire(2)
    for _ in range(5):
        rig.wait_rows(min(rig.done() + 150, 1900))
        with rig.office.sessions.begin() as session:
            torn = update(Shard).where(Shard.status == ShardStatus.RUNNING)
            session.execute(torn.values(fence=Shard.fence + 1, lease_until=1.0, dispatched_at=0.5))
    outcome = completed(rig, 2000)
    with rig.office.sessions.begin() as session:
        parts = Counter(session.scalars(select(Shard.part)).all())
    assert sorted(parts) == [f"part-{i:05d}.parquet" for i in range(10)]
    assert set(parts.values()) == {1}
    report.add("every running shard torn from its holder, 5 times", outcome, number=17)


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT"])
def test_a_signal_that_comes_twice(rig_on: RigOn, report: Report, name: str) -> None:
    rig = rig_on()
    rig.submit(1000)
    rig.hire()
    rig.wait_rows(100)
    leaving = rig.crew.processes.pop()
    started = time.monotonic()
    for _ in range(2):
        leaving.send_signal(getattr(signal, name))
        time.sleep(0.1)
    leaving.wait(60)
    seconds = time.monotonic() - started
    rig.hire()
    report.add(f"{name} twice (seconds until it has left)", completed(rig, 1000), seconds, number=10)


@on_disks("an object store refuses what is signed at another hour, and the job says storage_refused")
def test_clocks_that_are_three_hours_off(rig_on: RigOn, own_postgres: str, report: Report) -> None:
    """Leases are compared on the database's clock alone: nobody takes over early, and nothing waits for hours."""
    libfaketime = pytest.importorskip("libfaketime", reason="no libfaketime to shift a process's clock with")
    (library,) = Path(libfaketime.__file__).parent.rglob("libfaketime.so.1")
    rig = rig_on(own_postgres, lease_seconds=8)  # nobody dies at first, however loaded the machine is
    rig.submit(1500)
    for offset in ("+3h", "-3h"):
        shifted = {"LD_PRELOAD": str(library), "FAKETIME": offset, "DONT_FAKE_MONOTONIC": "1"}
        rig.crew.hire(**shifted, FAKETIME_DONT_FAKE_MONOTONIC="1")
    outcome = completed(rig, 1500)
    with rig.office.sessions.begin() as session:
        assert set(session.scalars(select(Shard.fence))) == {1}
    assert outcome.redone == 0
    rig.crew.processes[1].kill()
    rig.crew.processes[1].wait()
    rig.submit(600, "second")
    rig.wait_rows(100, "second")
    rig.crew.processes[0].kill()
    rig.crew.processes[0].wait()
    killed, before = time.monotonic(), rig.done("second")
    rig.hire()
    rig.wait_rows(before + 1, "second")
    seconds = time.monotonic() - killed
    assert rig.wait("second").status is JobStatus.COMPLETED
    rig.check(600, "second")
    report.add("workers at +3 h and -3 h; the first is killed, a right one goes on", outcome, seconds, number=20)


def test_no_memory_for_the_model(rig_on: RigOn, report: Report) -> None:
    """The job fails with its reason after a few attempts with pauses between them; the worker goes on with others."""
    rig = rig_on(engine_factory="tests.faults.points:build", max_attempts=3)
    rig.submit(1, "large", model="memory")
    rig.submit(200)
    rig.hire()
    started = time.monotonic()
    job = rig.wait("large")
    seconds = time.monotonic() - started
    assert (job.status, job.error_code) == (JobStatus.FAILED, "out_of_memory")
    assert "999 GiB" in str(job.error_message)
    assert rig.crew.log.read_text().count("MemoryError: no room") == 3
    report.add("MemoryError; another job beside it (seconds until it fails)", completed(rig, 200), seconds, number=14)
