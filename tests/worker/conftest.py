"""A worker process without a queue, on each kind of database."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog

from db.settings import Settings
from tests.worker.factories import Office


@pytest.fixture(autouse=True, scope="session")
def _plain_log() -> None:
    """Drawing every local variable of a traceback takes a second."""
    renderer = structlog.dev.ConsoleRenderer(colors=False, exception_formatter=structlog.dev.plain_traceback)
    structlog.configure(processors=[structlog.contextvars.merge_contextvars, renderer])


@pytest.fixture
def office(database_url: str, tmp_path: Path) -> Iterator[Office]:
    settings = Settings(
        home=tmp_path / "home",
        data_roots=(tmp_path,),
        database_url=database_url,
        shard_rows=100,
        shard_window=2,
        lease_seconds=0.6,
        redispatch_seconds=60.0,
        max_attempts=2,
        retry_seconds=0,
    )
    made = Office(settings)
    yield made
    made.close()
