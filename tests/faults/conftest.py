"""Servers that may be killed, and the report: `make faults` writes it to docs/faults.md."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import sqlalchemy

from tests.faults.rig import SEED, Rig
from tests.faults.servers import PostgresServer, RedisServer
from tests.faults.tally import Report

REPORT = Report()


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


@pytest.fixture
def rig_on(redis_server: RedisServer, tmp_path: Path) -> Iterator[Callable[..., Rig]]:
    """`rig_on(database_url, **settings)`; SQLite without an address."""
    made: list[Rig] = []

    def make(database_url: str = "", **settings: object) -> Rig:
        url = database_url or f"sqlite:///{tmp_path / 'ledger.db'}"
        made.append(Rig(tmp_path, url, redis_server.url, SEED, settings))
        return made[-1]

    yield make
    for rig in made:
        rig.close()


def pytest_report_header() -> str:
    return f"fault seed: {SEED} (NIGHTMILL_FAULT_SEED={SEED} repeats it)"


def pytest_sessionfinish() -> None:
    path = os.environ.get("NIGHTMILL_FAULTS_REPORT")
    if REPORT.rows:
        print("\n" + REPORT.table())
        if path:
            Path(path).write_text(REPORT.page(SEED))
