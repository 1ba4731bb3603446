"""Redis, PostgreSQL and the API: killed, restarted, and asked everything at once."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import httpx
import pytest
from sqlalchemy import func, select

from api.queue import RedisQueue
from db import control, dispatch
from db.dispatch import Wakeup
from db.models import Job, JobStatus, Shard
from tests.faults.rig import Outcome, Rig, read
from tests.faults.servers import PostgresServer, RedisServer, eventually
from tests.faults.tally import Report
from tests.faults.test_workers import completed
from tests.worker.factories import ECHO, write_texts

pytestmark = pytest.mark.faults
RigOn = Callable[..., Rig]


def test_redis_killed_and_restarted_empty(rig_on: RigOn, redis_server: RedisServer, report: Report) -> None:
    rig = rig_on()
    rig.submit(3000)
    rig.hire(2)
    workers, slowest = list(rig.crew.processes), 0.0
    for _ in range(3):
        rig.wait_rows(rig.done() + 200)
        redis_server.kill()
        time.sleep(1)
        redis_server.start()
        before, started = rig.done(), time.monotonic()
        rig.wait_rows(min(before + 600, 2999))  # beyond what the workers had in hand
        slowest = max(slowest, time.monotonic() - started)
    report.add("3 times", completed(rig, 3000), slowest, number=2)
    assert [worker.poll() for worker in workers] == [None, None]


def test_postgres_restarted_at_once(
    rig_on: RigOn, postgres_server: PostgresServer, own_postgres: str, report: Report
) -> None:
    rig = rig_on(own_postgres)
    rig.submit(3000)
    rig.hire(2)
    url, slowest = rig.serve(), 0.0
    for _ in range(3):
        rig.wait_rows(rig.done() + 200)
        postgres_server.crash()
        answer = httpx.get(f"{url}/v1/jobs/job", timeout=120)
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "5")
        postgres_server.start()
        started = time.monotonic()
        eventually(lambda: httpx.get(f"{url}/v1/jobs/job", timeout=120).status_code == 200, "the API answers")
        slowest = max(slowest, time.monotonic() - started)
    report.add("PostgreSQL, 3 times (seconds until the API answers)", completed(rig, 3000), slowest, number=5)


def test_the_api_killed_before_it_could_tell_the_queue(
    rig_on: RigOn, redis_server: RedisServer, report: Report
) -> None:
    rig = rig_on()
    redis_server.kill()
    url = rig.serve()
    source = rig.lay(write_texts(rig.home / "in.parquet", [f"job row {i}" for i in range(300)]))
    body = {"input": str(source), "output": str(rig.place("job-out")), "model": "fake:slow", "recipe": ECHO}
    answer = httpx.post(f"{url}/v1/jobs", json=body, timeout=120)
    assert answer.status_code == 202, answer.text
    rig.api[0].kill()
    redis_server.start()
    started = time.monotonic()
    rig.hire()
    job_id = answer.json()["id"]
    job = rig.wait(job_id)
    assert (job.status, job.rows_succeeded) == (JobStatus.COMPLETED, 300)
    again = sum(count - 1 for count in rig.computed(job_id).values())
    outcome = replace(rig.check(300), redone=again)
    report.add("kill -9, Redis down (seconds until the job ends)", outcome, time.monotonic() - started, number=27)


def test_every_message_five_times_and_two_sweeps_at_once(rig_on: RigOn, report: Report) -> None:
    rig = rig_on(lease_seconds=30)  # a lease that ends because the machine is slow would be another fault
    rig.submit(1500)
    queue = RedisQueue(rig.redis_url)
    rig.hire(2)

    def flood(_: int) -> None:
        with rig.office.sessions.begin() as session:
            due = dispatch.due(session, window=16, redispatch_seconds=0.1)
        for wakeup in due * 5:
            queue.send(wakeup)

    with ThreadPoolExecutor(2) as pool:
        while not rig.office.job().status.terminal:
            list(pool.map(flood, range(2)))
            time.sleep(0.3)
    for task in ("split", "merge"):
        queue.send(Wakeup(task, "job"))  # type: ignore[arg-type]
    queue.close()
    outcome = completed(rig, 1500)
    report.add("every message five times, two sweeps at once", outcome)
    assert outcome.redone == 0


def test_one_idempotency_key_at_two_apis_at_once(rig_on: RigOn, own_postgres: str, report: Report) -> None:
    rig = rig_on(own_postgres)
    urls = [rig.serve(), rig.serve()]
    source = rig.lay(write_texts(rig.home / "in.parquet", ["a"] * 3))
    body = {"input": str(source), "model": "fake", "recipe": ECHO}

    def submit(number: int) -> tuple[int, str]:
        key = {"Idempotency-Key": f"key {number // 16}"}
        answer = httpx.post(f"{urls[number % 2]}/v1/jobs", json=body, headers=key, timeout=120)
        return answer.status_code, answer.json()["id"]

    with ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(submit, range(960)))
    assert {status for status, _ in answers} == {202}
    assert [len({job_id for _, job_id in answers[i : i + 16]}) for i in range(0, 960, 16)] == [1] * 60
    with rig.office.sessions.begin() as session:
        assert session.scalar(select(func.count()).select_from(Job)) == 60
    report.add("16 times at once at two APIs, 60 keys", Outcome(60, 0, 0, 0), number=18)


@pytest.mark.parametrize("how", ["cancel", "expire"])
def test_a_job_stopped_while_it_runs(rig_on: RigOn, report: Report, how: str) -> None:
    rig = rig_on()
    rig.submit(4000)
    rig.hire(2)
    rig.wait_rows(700)
    started = time.monotonic()
    with rig.office.sessions.begin() as session:
        if how == "cancel":
            control.cancel(session, "job", "default")
        else:
            control.expire(session, "job")
    job = rig.wait()
    seconds = time.monotonic() - started
    assert job.status is (JobStatus.CANCELLED if how == "cancel" else JobStatus.EXPIRED)
    rows = read(rig.output()).to_pylist()
    kept = {row["id"]: row["output"] for row in rows if row["error"] is None}
    assert all(text == f"JOB ROW {i}" for i, text in kept.items())
    assert len(kept) == job.rows_succeeded
    computed = rig.computed()
    thrown_away = len(computed.keys() - kept.keys())
    assert thrown_away < 60  # what was in the engine, or came out of it in that moment
    assert how == "cancel" or [row["id"] for row in rows] == list(range(4000))
    doubled, redone = len(rows) - len({row["id"] for row in rows}), sum(computed.values()) - len(computed)
    report.add(f"{how} while two workers run", Outcome(len(rows), 0, doubled, redone), seconds, number=11)


def test_pause_and_resume_over_and_over(rig_on: RigOn, report: Report) -> None:
    rig = rig_on()
    rig.submit(2000)
    rig.hire(2)
    slowest = 0.0
    for _ in range(3):
        rig.wait_rows(rig.done() + 150)
        with rig.office.sessions.begin() as session:
            control.pause(session, "job", "default")
        eventually(lambda: not at_work(rig), "nothing runs")
        time.sleep(2)  # the step that was under way when the shards were given back
        before = rig.done()
        time.sleep(1)
        assert rig.done() == before
        with rig.office.sessions.begin() as session:
            control.resume(session, "job", "default")
        started = time.monotonic()
        rig.wait_rows(before + 1)
        slowest = max(slowest, time.monotonic() - started)
    report.add("pause and resume, 3 times", completed(rig, 2000), slowest)


def at_work(rig: Rig) -> int:
    with rig.office.sessions.begin() as session:
        return session.scalar(select(func.count()).where(Shard.owner.is_not(None))) or 0


def test_an_urgent_job_does_not_wait_for_the_backlog(rig_on: RigOn, report: Report) -> None:
    rig = rig_on()
    for number in range(20):
        rig.submit(300, f"batch{number}")
    rig.hire()
    rig.wait_rows(100, "batch0")
    started = time.monotonic()
    rig.submit(100, "urgent", priority=10)
    job = rig.wait("urgent")
    seconds = time.monotonic() - started
    assert job.status is JobStatus.COMPLETED
    done = sum(rig.done(f"batch{number}") for number in range(20))
    assert done < 20 * 300 * 0.5
    report.add("20 jobs (seconds until the urgent one ends)", rig.check(100, "urgent"), seconds, number=30)
