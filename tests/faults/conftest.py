"""Servers that may be killed, and the report, which `make faults` (tests.faults.runs) writes to docs/faults.md."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import sqlalchemy

from db.stores import S3Path
from tests.faults.buckets import SeaweedServer
from tests.faults.rig import IN_BUCKETS, SEED, Rig
from tests.faults.servers import PostgresServer, RedisServer
from tests.faults.tally import Report, table
from tests.s3_server import KEYS, new_bucket

REPORT = Report()
FAILED: list[str] = []
SKIPPED: dict[str, str] = {}
WAITING: set[str] = set()  # tests that have not run yet


@pytest.fixture
def report() -> Report:
    return REPORT


@pytest.fixture
def redis_server() -> Iterator[RedisServer]:
    server = RedisServer()
    server.start()
    yield server
    server.kill()


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    server = PostgresServer()
    server.start()
    yield server
    server.remove()


@pytest.fixture
def own_postgres(postgres_server: PostgresServer, request: pytest.FixtureRequest) -> str:
    """An empty database of the server that may be restarted."""
    name = f"t{abs(hash(request.node.nodeid)) % 10**9}"
    admin = sqlalchemy.create_engine(postgres_server.url, isolation_level="AUTOCOMMIT")
    with admin.connect() as connection:
        connection.execute(sqlalchemy.text(f"CREATE DATABASE {name}"))
    admin.dispose()
    return postgres_server.url.rsplit("/", 1)[0] + f"/{name}"


@pytest.fixture(scope="session")
def seaweed() -> Iterator[SeaweedServer]:
    server = SeaweedServer()
    server.start()
    yield server
    server.remove()


@pytest.fixture
def sea_bucket(
    seaweed: SeaweedServer, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> S3Path:
    """An empty bucket of a real server."""
    for name, value in KEYS.items():
        monkeypatch.setenv(name, value)
    return new_bucket(seaweed.endpoint, tmp_path_factory.getbasetemp() / "scratch")


@pytest.fixture
def rig_on(redis_server: RedisServer, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Callable[..., Rig]]:
    """`rig_on(database_url, **settings)`; SQLite without an address. NIGHTMILL_FAULTS_STORE=s3 puts every test's input
    and output into a bucket of SeaweedFS."""
    made: list[Rig] = []

    def make(database_url: str = "", bucket: S3Path | None = None, **settings: object) -> Rig:
        url = database_url or f"sqlite:///{tmp_path / 'ledger.db'}"
        if bucket is None and IN_BUCKETS:
            bucket = request.getfixturevalue("sea_bucket")
        made.append(Rig(tmp_path, url, redis_server.url, SEED, settings, bucket))
        return made[-1]

    yield make
    for rig in made:
        rig.close()


def pytest_report_header() -> str:
    return f"fault seed: {SEED} (NIGHTMILL_FAULT_SEED={SEED} repeats it)"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Ours in an order of the seed's own, so that no test can lean on another; others stay where they are."""
    places = [place for place, item in enumerate(items) if item.path.parent == Path(__file__).parent]
    ours = [items[place] for place in places]
    random.Random(SEED).shuffle(ours)
    for place, item in zip(places, ours, strict=True):
        items[place] = item
    WAITING.update(item.name for item in ours)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    name = report.nodeid.rpartition("::")[2]
    if report.failed:
        FAILED.append(name)
    elif report.skipped and isinstance(report.longrepr, tuple):
        SKIPPED[name] = report.longrepr[2].removeprefix("Skipped: ")
    if report.when == "teardown":
        WAITING.discard(name)


def pytest_sessionfinish() -> None:
    path = os.environ.get("NIGHTMILL_FAULTS_REPORT")
    if REPORT.lines:
        print("\n" + table([{"lines": REPORT.lines}]))
    if path:
        REPORT.save(Path(path), seed=SEED, failed=FAILED, skipped=SKIPPED, not_run=sorted(WAITING))
