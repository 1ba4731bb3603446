"""The OpenAI face and a worker in one process."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from api.app import create_app
from db.settings import Settings
from tests.api.conftest import MemoryQueue
from tests.api.openai.office import Desk
from tests.api.openai.rig import service
from tests.worker.factories import Office


@pytest.fixture(scope="module")
def service_url() -> Iterator[str]:
    """A server and a worker process that a file's tests share; they sweep so often that idling takes its toll."""
    with service() as url:
        yield url


@pytest.fixture
def database(request: pytest.FixtureRequest) -> str:
    """SQLite; tests that change rows under a lock are run on PostgreSQL too, by parameter."""
    url: str = request.getfixturevalue(f"{getattr(request, 'param', 'sqlite')}_url")
    return url


@pytest.fixture
def desk(tmp_path: Path, database: str) -> Iterator[Desk]:
    settings = Settings(
        home=tmp_path / "home",
        database_url=database,
        sweep_seconds=3600,
        shard_rows=2,
        shard_window=2,
        lease_seconds=2,
        max_attempts=2,
        retry_seconds=0,
        model="fake",
        openai_models={"gpt-4o-mini": "fake", "gone": "no-such-model"},
    )
    queue = MemoryQueue()
    office = Office(settings)
    queue.sent = office.sent
    app: FastAPI = create_app(settings, queue)
    with TestClient(app, raise_server_exceptions=False) as http:
        app.state.services.sweeper.stop()  # the desk sweeps; its own thread would be another that sends
        yield Desk(http, app, office)
    office.close()
