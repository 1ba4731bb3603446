"""Four schedulers at once, each of which may die before any commit: one run and one job per fire time."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path

from sqlalchemy import select

from db.models import Job
from db.schedule_models import ScheduleRun
from tests.db.ledger import Sessions
from tests.db.nights import add, at, spec, write

ROOT = Path(__file__).resolve().parents[2]
BEGIN, NUM_FIRES = at("2026-03-28T15:00"), 24  # over the change of the clocks
NUM_PROCESSES = 4
UNTIL = BEGIN + NUM_FIRES * 3600 + 1800


def test_one_run_per_fire_time(sessions: Sessions, database_url: str, tmp_path: Path) -> None:
    write(tmp_path, "table")
    job = {"input": str(tmp_path / "in"), "output": str(tmp_path / "out" / "{{ ts_nodash }}")}
    made = spec(tmp_path, cron="0 * * * *", job=job, overlap="queue")
    add(sessions, made, BEGIN)
    running = [start(database_url, tmp_path, seed) for seed in range(NUM_PROCESSES)]
    ended = [(*process.communicate(timeout=250), process.returncode) for process in running]
    assert [(err, code) for _, err, code in ended] == [("", 0)] * NUM_PROCESSES
    crashes = sum(int(out) for out, _, _ in ended)
    assert crashes > 0
    expected = [BEGIN + 3600 * hour for hour in range(1, NUM_FIRES + 1)]
    with sessions.begin() as session:
        found = list(session.scalars(select(ScheduleRun.fire_at).order_by(ScheduleRun.fire_at)))
        started = list(session.scalars(select(ScheduleRun.job_id).where(ScheduleRun.job_id.is_not(None))))
        jobs = list(session.scalars(select(Job.id)))
    print(f"{len(found)} fire times, {crashes} deaths, {len(jobs)} jobs")
    assert Counter(found) == Counter(expected)
    assert len(jobs) == NUM_FIRES
    assert sorted(jobs) == sorted(started)


def start(url: str, home: Path, seed: int) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.db.scheduler", url, str(home), str(BEGIN), str(UNTIL), str(seed)]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
