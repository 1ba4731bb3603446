"""The broker away, silent or full, and a worker's host cut off the network."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace

import httpx
import pytest
import redis

from db.models import JobStatus
from tests.faults.rig import Outcome, Rig
from tests.faults.servers import PostgresServer, RedisServer, eventually
from tests.faults.tally import Report
from tests.faults.test_workers import completed
from tests.faults.wire import Host, Proxy, through
from tests.worker.factories import ECHO, write_texts

pytestmark = pytest.mark.faults
RigOn = Callable[..., Rig]
AWAY_SECONDS = 20.0  # a minute takes the same path: what pauses between two attempts is bounded


@pytest.fixture
def host() -> Iterator[Host]:
    made = Host()
    yield made
    made.remove()


def post(rig: Rig, url: str, num_rows: int) -> str:
    """Submit over HTTP; the job's id. Its rows are called "job row 0" and so on."""
    source = rig.lay(write_texts(rig.home / "in.parquet", [f"job row {i}" for i in range(num_rows)]))
    body = {"input": str(source), "output": str(rig.place("job-out")), "model": "fake:slow", "recipe": ECHO}
    answer = httpx.post(f"{url}/v1/jobs", json=body, timeout=120)
    assert answer.status_code == 202, answer.text
    return str(answer.json()["id"])


def ended(rig: Rig, job_id: str, num_rows: int) -> Outcome:
    job = rig.wait(job_id)
    assert (job.status, job.rows_succeeded) == (JobStatus.COMPLETED, num_rows), rig.crew.log.read_text()[-4000:]
    return replace(rig.check(num_rows), redone=sum(count - 1 for count in rig.computed(job_id).values()))


def test_redis_away_at_the_submission(rig_on: RigOn, redis_server: RedisServer, report: Report) -> None:
    rig = rig_on()
    url = rig.serve()
    rig.hire()
    eventually(lambda: "worker ready" in rig.crew.log.read_text(), "the worker is ready", 180)
    redis_server.kill()
    away = time.monotonic()
    job_id = post(rig, url, 200)
    time.sleep(max(AWAY_SECONDS - (time.monotonic() - away), 0))
    redis_server.start()
    back = time.monotonic()
    rig.wait_rows(1, job_id)
    seconds = time.monotonic() - back
    report.add(f"for {AWAY_SECONDS:.0f} s", ended(rig, job_id, 200), seconds, number=6)
    assert seconds < 15, "the pause between two attempts to reach the broker is too long"


def test_redis_out_of_memory(rig_on: RigOn, redis_server: RedisServer, report: Report) -> None:
    """Submissions are accepted, and the work begins when there is room again, without a hand."""
    rig = rig_on()
    url = rig.serve()
    rig.hire()
    eventually(lambda: "worker ready" in rig.crew.log.read_text(), "the worker is ready", 180)
    client = redis.Redis(port=redis_server.port)
    client.config_set("maxmemory-policy", "noeviction")
    client.config_set("maxmemory", 1)
    job_id = post(rig, url, 200)
    time.sleep(2)
    assert rig.done(job_id) == 0
    client.config_set("maxmemory", 0)
    back = time.monotonic()
    client.close()
    rig.wait_rows(1, job_id)
    seconds = time.monotonic() - back
    report.add("Redis refuses every write for 2 s", ended(rig, job_id, 200), seconds, number=8)


def test_a_silent_broker(rig_on: RigOn, redis_server: RedisServer, report: Report) -> None:
    proxy = Proxy(("127.0.0.1", redis_server.port))
    rig = rig_on(redis_url=through(redis_server.url, proxy.address))
    try:
        rig.submit(600)
        rig.hire()
        rig.wait_rows(100)
        proxy.silence()
        time.sleep(AWAY_SECONDS)
        proxy.heal()
        before, healed = rig.done(), time.monotonic()
        if before < 600:
            rig.wait_rows(before + 1)
        seconds = time.monotonic() - healed
        report.add(f"connections that say nothing for {AWAY_SECONDS:.0f} s", completed(rig, 600), seconds, number=7)
        assert rig.crew.processes[0].poll() is None
        assert seconds < 60
    finally:
        proxy.close()


def test_a_worker_host_cut_off_and_healed(
    rig_on: RigOn,
    redis_server: RedisServer,
    postgres_server: PostgresServer,
    own_postgres: str,
    host: Host,
    report: Report,
) -> None:
    """The cable is pulled while the worker computes; another one takes its shards over; the cable is put back."""
    rig = rig_on(own_postgres)
    wires = [Proxy(("127.0.0.1", port), host.gateway) for port in (redis_server.port, postgres_server.port)]
    there = {
        "NIGHTMILL_REDIS_URL": through(redis_server.url, wires[0].address),
        "NIGHTMILL_DATABASE_URL": through(own_postgres, wires[1].address),
    }
    if rig.bucket is not None:
        endpoint = rig.bucket.service.endpoint
        wires.append(Proxy(("127.0.0.1", int(endpoint.rpartition(":")[2])), host.gateway))
        there["NIGHTMILL_S3_ENDPOINT"] = through(endpoint, wires[-1].address)
    try:
        rig.submit(1500)
        lonely = rig.crew.hire(*host.prefix, **there)
        rig.wait_rows(100)
        host.cut()
        cut = time.monotonic()
        rig.hire()
        eventually(lambda: rig.office.job().rows_succeeded >= 600, "the other worker goes on", 180)
        seconds = time.monotonic() - cut
        host.heal()
        report.add("a worker's host cut off the network and healed", completed(rig, 1500), seconds)
        near = rig.crew.processes.pop()  # now the one that was cut off has to do all the work
        near.kill()
        near.wait()
        rig.submit(300, "again")
        job = rig.wait("again")
        assert (job.status, lonely.poll()) == (JobStatus.COMPLETED, None)
        rig.check(300, "again")
    finally:
        for wire in wires:
            wire.close()
