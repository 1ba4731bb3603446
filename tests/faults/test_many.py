"""Many at once: submissions, jobs in the list, random faults; and an upgrade while jobs are under way."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path

import httpx
import psutil
import pytest
import redis
import sqlalchemy
from alembic import command
from alembic.config import Config
from fastapi.testclient import TestClient
from sqlalchemy import func, insert, select

from api.app import create_app
from db import control, dispatch
from db.errors import WrongState
from db.models import Job, JobStatus
from db.session import MIGRATIONS, connect, migrate, session_factory
from db.settings import Settings
from tests.api.conftest import MemoryQueue
from tests.faults.rig import Outcome, Rig, on_disks
from tests.faults.servers import RedisServer, eventually, freeze, thaw
from tests.faults.tally import Report
from tests.worker.factories import ECHO, spec_of, write_texts

pytestmark = pytest.mark.faults
RigOn = Callable[..., Rig]
AT_ONCE, LISTED, PAGE = 1_000, 100_000, 200


@pytest.fixture(params=["sqlite", "postgres"])
def either(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The address of an empty database of each kind."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'ledger.db'}"
    return str(request.getfixturevalue("own_postgres"))


def kind(url: str) -> str:
    return url.partition(":")[0].partition("+")[0]


def test_a_thousand_submissions_at_once(rig_on: RigOn, either: str, report: Report) -> None:
    rig = rig_on(either)
    url = rig.serve()
    source = rig.lay(write_texts(rig.home / "in.parquet", ["a"] * 3))
    body = {"input": str(source), "model": "fake", "recipe": ECHO}
    seconds: list[float] = []

    async def timed(answer: Awaitable[httpx.Response]) -> int:
        started = time.monotonic()
        status = (await answer).status_code
        seconds.append(time.monotonic() - started)
        return status

    async def all_at_once(ask: Callable[[httpx.AsyncClient, int], Awaitable[httpx.Response]]) -> list[int]:
        limits = httpx.Limits(max_connections=AT_ONCE)
        async with httpx.AsyncClient(limits=limits, timeout=120) as client:
            return await asyncio.gather(*(timed(ask(client, number)) for number in range(AT_ONCE)))

    def submit(client: httpx.AsyncClient, number: int) -> Awaitable[httpx.Response]:
        return client.post(f"{url}/v1/jobs", json=body, headers={"Idempotency-Key": f"key {number}"})

    # What the client and the connections take by themselves, on the same processors.
    assert Counter(asyncio.run(all_at_once(lambda client, number: client.get(f"{url}/healthz")))) == {200: AT_ONCE}
    bare = statistics.quantiles(seconds, n=100)[98]
    seconds.clear()
    statuses = asyncio.run(all_at_once(submit))
    assert Counter(statuses) == {202: AT_ONCE}
    with rig.office.sessions.begin() as session:
        assert session.scalar(select(func.count()).select_from(Job)) == AT_ONCE
    p99 = statistics.quantiles(seconds, n=100)[98]
    what = f"{AT_ONCE:,} connections, {kind(either)} (seconds: 99th percentile of the answers)"
    report.add(what, Outcome(AT_ONCE, 0, 0, 0), p99, number=19)
    print(f"{what}: {p99:.1f}; of as many health checks: {bare:.1f}")


def test_a_hundred_thousand_queued_jobs(either: str, report: Report, tmp_path: Path) -> None:
    """The list's last pages are as quick as its first, and the broker gets a bounded number of messages.

    50 pages at either end: the answers, not the database, are what takes the time.
    """
    settings = Settings(home=tmp_path, database_url=either, sweep_seconds=3600)
    spec = spec_of(tmp_path / "in.parquet").model_dump(mode="json")
    common = {"status": JobStatus.VALIDATING, "spec": spec, "num_rows": 1}
    jobs = [
        {"id": f"job_{i:06d}", "output_uri": f"/out/{i}", "created_at": 1e9 + i // 3, **common} for i in range(LISTED)
    ]
    seconds: list[float] = []
    seen: list[str] = []
    with TestClient(create_app(settings, MemoryQueue())) as http:
        database = connect(either)
        with database.begin() as connection:
            connection.execute(insert(Job), jobs)
        after: dict[str, str] = {}
        while True:
            started = time.monotonic()
            page = http.get("/v1/jobs", params={"limit": PAGE, **after}).json()
            seconds.append(time.monotonic() - started)
            seen += [job["id"] for job in page["jobs"]]
            if page["next"] is None:
                break
            after = {"after": page["next"]}
            if len(seconds) == 50:
                after = {"after": f"job_{50 * PAGE:06d}"}
    assert seen == sorted(seen, reverse=True)
    assert len(set(seen)) == len(seen) == 100 * PAGE
    early, late = statistics.median(seconds[:50]), statistics.median(seconds[-50:])
    assert late < 3 * early, f"a late page takes {late:.3f} s, an early one {early:.3f} s"
    started = time.monotonic()
    with session_factory(database).begin() as session:
        dispatch.due(session, window=16, redispatch_seconds=60)
    sweep = time.monotonic() - started
    with session_factory(database).begin() as session:
        assert dispatch.due(session, window=16, redispatch_seconds=60) == []
        sent = session.scalar(select(func.count()).select_from(Job).where(Job.dispatched_at > 0))
        assert sent == dispatch.MOST_SPLITS
    database.dispose()
    what = f"{LISTED:,} queued jobs listed, {kind(either)} (seconds of one sweep)"
    report.add(what, Outcome(LISTED, 0, 0, 0), sweep)


@on_disks("the first release had no others")
def test_an_upgrade_with_jobs_under_way(rig_on: RigOn, either: str, report: Report, tmp_path: Path) -> None:
    """Jobs of the first release's tables, one queued and one half done, end under this one."""
    database = connect(either)
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS))
    with database.begin() as connection:
        config.attributes["connection"] = connection
        command.upgrade(config, "0001")
    old = sqlalchemy.MetaData()
    old.reflect(database)
    zero = dict.fromkeys(("rows_succeeded", "rows_failed", "prompt_tokens", "cached_tokens", "output_tokens"), 0)
    with database.begin() as connection:
        for name, status, shards in (("queued", "validating", None), ("half", "running", 2)):
            source = write_texts(tmp_path / f"{name}.parquet", [f"{name} row {i}" for i in range(400)])
            values = {
                "id": name, "status": status, "spec": spec_of(source, model="fake:slow").model_dump(mode="json"),
                "output_uri": str(tmp_path / f"{name}-out"), "num_rows": 400, "num_shards": shards, "shards_done": 0,
                "prepared": None if shards is None else {"model_fingerprint": "f" * 16}, "created_at": 1e9,
                "dispatched_at": 0.0, "attempts": 0, **zero,
            }  # fmt: skip
            connection.execute(insert(old.tables["jobs"]), values)
        (tmp_path / "half-out").mkdir()
        for index, status in enumerate(("running", "pending")):  # of a worker that ended for the upgrade
            held = (
                {"owner": "old:1", "lease_until": 1e9} if status == "running" else {"owner": None, "lease_until": None}
            )
            values = {
                "job_id": "half", "index": index, "file": str(tmp_path / "half.parquet"), "start_row": 200 * index,
                "stop_row": 200 * index + 200, "first_row": 200 * index, "status": status, "fence": 1 - index,
                "attempts": 1 - index, "dispatched_at": 1e9 * (1 - index), **held, **zero,
            }  # fmt: skip
            connection.execute(insert(old.tables["shards"]), values)
    migrate(database)
    database.dispose()
    rig = rig_on(either)
    rig.hire()
    started, rows = time.monotonic(), 0
    for name in ("queued", "half"):
        assert rig.wait(name).status is JobStatus.COMPLETED
        rows += rig.check(400, name).num_rows
    what = f"from the first release's tables, {kind(either)}"
    report.add(what, Outcome(rows, 0, 0, 0), time.monotonic() - started, number=28)


def test_random_faults(rig_on: RigOn, redis_server: RedisServer, own_postgres: str, report: Report) -> None:
    """Two workers, jobs that come all the time, and a fault every other second; nothing piles up anywhere."""
    rig = rig_on(own_postgres)
    url = rig.serve()
    sizes = {f"soak{i}": rig.random.randrange(1, 400) for i in range(30)}
    rig.hire(2)
    left, faults = list(sizes), Counter[str]()
    while left:
        for name in left[:3]:
            rig.submit(sizes[name], name, shard_rows=rig.random.choice([10, 50, 200]))
        del left[:3]
        fault = rig.random.choice(["kill", "freeze", "wipe", "pause"])
        faults[fault] += 1
        disturb(rig, redis_server, fault, rig.random.choice([name for name in sizes if name not in left]))
        time.sleep(2)
    rows = redone = 0
    for name, size in sizes.items():
        assert rig.wait(name).status is JobStatus.COMPLETED, rig.crew.log.read_text()[-4000:]
        outcome = rig.check(size, name)
        rows, redone = rows + outcome.num_rows, redone + outcome.redone
        names = {path.name for path in rig.output(f"{name}-out").iterdir()}
        assert names >= {"_SUCCESS", "_manifest.json"}
        assert "_tmp" not in names
    client = redis.Redis(port=redis_server.port)
    # A worker that is killed with messages in its hands, one per thread at most, leaves them there until they expire.
    left_behind = 2 * faults["kill"]
    eventually(lambda: client.hlen("unacked") <= left_behind, "nothing piles up in the broker")
    client.close()
    assert httpx.get(f"{url}/readyz", timeout=120).status_code == 200
    assert all(psutil.Process(process.pid).num_fds() < 200 for process in (*rig.api, *rig.crew.processes))
    print(f"random faults: {dict(faults)}")
    report.add("30 jobs, 10 faults of four kinds", Outcome(rows, 0, 0, redone), number=29)


def disturb(rig: Rig, redis_server: RedisServer, fault: str, job_id: str) -> None:
    if fault == "kill":
        rig.kill(rig.random.randrange(2))
    elif fault == "freeze":
        frozen = rig.random.choice(rig.crew.processes)
        freeze(frozen)
        time.sleep(2)
        thaw(frozen)
    elif fault == "wipe":
        redis_server.kill()
        redis_server.start()
    else:
        try:
            with rig.office.sessions.begin() as session:
                control.pause(session, job_id, "default")
            time.sleep(1)
            with rig.office.sessions.begin() as session:
                control.resume(session, job_id, "default")
        except WrongState:  # it has ended meanwhile
            return
