"""Fleets: many workers under the ledger's own rules, on a clock that runs ahead."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select

from db import jobs, turns
from db.accounts import Tenant
from db.models import Job
from db.session import db_now
from db.settings import Settings
from db.virtual import VirtualLedger
from engine.config import EngineConfig
from engine.errors import InvalidRequest
from engine.simulation import FittedCost
from engine.simulation.lengths import Lengths
from engine.simulation.shared import Pace, Profile, SharedEngine
from tests.bench.fleet import Case, course
from worker import fleet_jobs
from worker.fleet import Fleet
from worker.fleet_jobs import FleetCourse, FleetJob

CONFIG = EngineConfig(num_blocks=400, max_sequences=8, token_budget=64, max_model_len=100)
COST = FittedCost((0.005, 0.001, 0.0, 0.0, 0.0, 0.0), 0.0)
PROFILES = [
    Profile(Lengths.parse(prompt, "x"), Lengths.parse(output, "x")) for prompt, output in (("10", "5"), ("9", "9"))
]
BIG = FleetJob("big", "many", 10_000_000, 20_000)


@pytest.fixture(scope="module")
def pace() -> Pace:
    return Pace(PROFILES, CONFIG, COST)


def run(pace: Pace, workers: int, *wanted: FleetJob, **settings: Any) -> FleetCourse:
    return Fleet(wanted, workers, lambda: SharedEngine(pace), Settings(**settings)).run()


def ended(course: FleetCourse) -> dict[str, float]:
    return {job.name: job.ended for job in course.jobs}


def test_a_job_of_ten_million_rows_starves_no_small_one(pace: Pace) -> None:
    small = FleetJob("small", "few", 100_000, 5000, at=3600.0)
    course = run(pace, 4, BIG, small)
    found = {job.name: job for job in course.jobs}
    shard = 20_000 * 4 / pace.flow([0]).rate  # four threads share an engine
    assert found["small"].began - 3600.0 <= shard, "it waits for a thread, and for no more"
    assert found["small"].ended - 3600.0 < 3 * shard < found["big"].ended / 10
    assert found["big"].began == 0.0
    assert found["big"].ended == course.seconds
    assert min(course.utilisation) > 0.95
    assert course.contested_seconds == pytest.approx(found["small"].ended - 3600.0, abs=0.01)
    assert course.tenants["many"].equal == course.tenants["few"].equal == pytest.approx(0.5)
    assert course.tenants["many"].share + course.tenants["few"].share == pytest.approx(1)


def test_more_workers_end_sooner(pace: Pace) -> None:
    seconds = {workers: run(pace, workers, FleetJob("one", "t", 400_000, 2000)).seconds for workers in (1, 2, 4, 8)}
    assert seconds[1] == pytest.approx(400_000 / pace.flow([0]).rate, rel=0.01)
    for workers in (2, 4, 8):
        assert seconds[1] / seconds[workers] == pytest.approx(workers, rel=0.08)


def test_tenants_have_equal_parts_however_many_jobs_each_has(pace: Pace) -> None:
    many = [FleetJob(f"m{number}", "many", 100_000, 1000) for number in range(5)]
    course = run(pace, 2, *many, FleetJob("f", "few", 100_000, 1000))
    assert course.tenants["few"].share == pytest.approx(0.5, abs=0.03)
    assert ended(course)["f"] < min(ended(course)[job.name] for job in many)


def test_a_higher_priority_goes_first(pace: Pace) -> None:
    late = FleetJob("late", "a", 20_000, 1000, priority=1, at=100.0)
    course = run(pace, 1, FleetJob("early", "a", 100_000, 1000), late)
    alone = run(pace, 1, late).seconds
    found = {job.name: job for job in course.jobs}
    assert found["late"].ended - found["late"].began == pytest.approx(alone, rel=0.3)
    assert found["late"].ended < found["early"].ended / 2


def test_a_coarse_cut_leaves_workers_idle_at_the_end(pace: Pace) -> None:
    fine, coarse = (run(pace, 4, FleetJob("j", "t", 100_000, rows)) for rows in (500, 20_000))
    assert coarse.seconds > fine.seconds
    assert min(fine.utilisation) > 0.9 > min(coarse.utilisation)
    assert coarse.tail_seconds > fine.tail_seconds
    nothing = run(pace, 8, FleetJob("j", "t", 1000, 1000))
    assert nothing.utilisation.count(0.0) == 7
    assert nothing.tail_seconds == nothing.seconds


def test_threads_and_window_are_the_settings(pace: Pace) -> None:
    """A job that may have one message out reaches forty threads by and by: a sweep for each."""
    job = FleetJob("j", "t", 40_000, 1000)
    narrow = run(pace, 40, job, worker_threads=1, shard_window=1, sweep_seconds=41.0)
    wide = run(pace, 40, job, worker_threads=1, shard_window=40)
    assert narrow.seconds == pytest.approx(wide.seconds + 39.0, abs=2.0)


def test_the_same_question_has_the_same_answer(pace: Pace) -> None:
    wanted = (FleetJob("a", "x", 30_000, 700), FleetJob("b", "y", 20_000, 900, kind=1, at=5.0))
    assert run(pace, 3, *wanted) == run(pace, 3, *wanted)


def test_flows_and_single_steps_agree() -> None:
    wanted = [
        FleetJob("a", "x", 1500, 100),
        FleetJob("b", "y", 1000, 150, kind=1),
        FleetJob("c", "y", 200, 50, at=10.0),
    ]
    case = Case("small", CONFIG, COST, PROFILES, wanted)
    flows, steps = course(case, stepped=False), course(case, stepped=True)
    for flow, step in zip(flows.jobs, steps.jobs, strict=True):
        assert flow.ended == pytest.approx(step.ended, rel=0.1)
    assert sum(flows.utilisation) == pytest.approx(sum(steps.utilisation), rel=0.1)


def test_the_virtual_ledgers_clock_is_its_own() -> None:
    ledger = VirtualLedger()
    times = []
    for now in (0.0, 86_400.5, 1e8):
        ledger.now = now
        with ledger.sessions.begin() as session:
            times.append(ledger.seconds(session.scalar(select(db_now())) or 0.0))
            assert turns.choose(session) is None
    assert times == [0.0, 86_400.5, 1e8]
    with ledger.sessions.begin() as session:
        session.add(Tenant(name="t", roots=[], created_at=0.0))
    with ledger.sessions.begin() as session:
        assert session.get_one(Tenant, "t").max_running_jobs is None
        assert session.scalars(select(Job)).all() == []
        assert not jobs.has_open(session, "j")
    assert time.time() > 1e9, "and nobody else's"


def written(folder: Path, lines: object) -> Path:
    file = folder / "jobs.json"
    file.write_text(json.dumps(lines))
    return file


def test_a_file_of_jobs(tmp_path: Path) -> None:
    first, second = fleet_jobs.read(
        written(tmp_path, [{"rows": 10}, {"rows": 20, "name": "n", "tenant": "t", "at": 1.5, "shard_rows": 3}]), 7
    )
    assert (first.name, first.tenant, first.shard_rows, first.at, first.prompt_tokens) == (
        "job 1",
        "default",
        7,
        0,
        None,
    )
    assert FleetJob.of(second, 4) == FleetJob("n", "t", 20, 3, 4, 0, 1.5)


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ([], "must be a list of jobs, with at least one"),
        ({"rows": 1}, "must be a list of jobs"),
        ([{}], "job 1': rows: Field required"),
        ([{"rows": 1}, {"rows": 0}], "job 2': rows: Input should be greater than or equal to 1"),
        ([{"rows": "many"}], "job 1': rows: Input should be a valid integer"),
        ([{"rows": 1, "tenants": "x"}], "job 1': tenants: Extra inputs are not permitted"),
        ([{"rows": 1, "priority": 101}], "job 1': priority: Input should be less than or equal to 100"),
        ([{"rows": 1, "at": -1}], "job 1': at: Input should be greater"),
        ([{"rows": 1, "name": "a"}, {"rows": 1, "name": "a"}], "job 2': name: there is another 'a'"),
        ([7], "job 1': it: Input should be a valid dictionary"),
        ([{"rows": 10_000_000, "shard_rows": 10}], "has 1,000,000 shards, of which at most 100,000 are simulated"),
    ],
)
def test_files_that_are_none_are_refused_by_job_and_field(tmp_path: Path, lines: object, message: str) -> None:
    with pytest.raises(InvalidRequest, match="jobs=.*" + message):
        fleet_jobs.read(written(tmp_path, lines), 1000)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match=r"none\.json': cannot be read: .*No such file"):
        fleet_jobs.read(tmp_path / "none.json", 1000)
    (tmp_path / "bad.json").write_text("[")
    with pytest.raises(InvalidRequest, match=r"bad\.json': cannot be read: Expecting value"):
        fleet_jobs.read(tmp_path / "bad.json", 1000)
