"""The API in process, on each kind of database, with a queue that only remembers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from api.app import create_app
from api.deps import Services
from api.queue import QueueError
from db.dispatch import Wakeup
from db.settings import Settings
from tests.api import ledger
from tests.api.gate import Gate


@dataclass
class MemoryQueue:
    """`broken` is what a lost broker says."""

    sent: list[Wakeup] = field(default_factory=list)
    broken: str | None = None
    lying: int = 0

    def send(self, wakeup: Wakeup) -> None:
        self.check()
        self.sent.append(wakeup)

    def check(self) -> int:
        if self.broken is not None:
            raise QueueError(self.broken)
        return self.lying

    def close(self) -> None:
        pass


@pytest.fixture
def queue() -> MemoryQueue:
    return MemoryQueue()


@pytest.fixture
def api_settings(tmp_path: Path, database_url: str) -> Settings:
    """An hour between sweeps: what a test sees sent was sent because of what it did."""
    return Settings(
        home=tmp_path / "home",
        data_roots=(tmp_path / "data",),
        database_url=database_url,
        sweep_seconds=3600,
        max_upload_bytes=100_000,
        max_job_rows=1000,
        model="default-model",
    )


@pytest.fixture
def app(api_settings: Settings, queue: MemoryQueue) -> FastAPI:
    return create_app(api_settings, queue)


@pytest.fixture
def http(app: FastAPI) -> Iterator[TestClient]:
    with TestClient(app, raise_server_exceptions=False) as client:
        yield client


@pytest.fixture
def services(http: TestClient, app: FastAPI) -> Services:
    services: Services = app.state.services
    return services


@pytest.fixture
def tweets(tmp_path: Path) -> Path:
    """Three rows: id, text, label, and messages."""
    folder = tmp_path / "data"
    folder.mkdir()
    return ledger.write(folder / "tweets.parquet", 3)


@pytest.fixture
def gate(api_settings: Settings, queue: MemoryQueue, tmp_path: Path) -> Iterator[Gate]:
    app = create_app(api_settings.model_copy(update={"auth": True, "submissions_per_minute": 20}), queue)
    with TestClient(app, raise_server_exceptions=False) as http:
        yield Gate(http, app.state.services, tmp_path / "tenants")
