"""A worker process without a queue, on each kind of database."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from db.settings import Settings
from tests.worker.factories import Office


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
    )
    made = Office(settings)
    yield made
    made.close()
