"""A migrated database of each kind, and ledgers with a job in a given state."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import sqlalchemy
from sqlalchemy.orm import Session, sessionmaker

from db.session import connect, migrate, session_factory


@pytest.fixture
def engine(database_url: str) -> Iterator[sqlalchemy.Engine]:
    engine = connect(database_url)
    migrate(engine)
    yield engine
    engine.dispose()


@pytest.fixture
def sessions(engine: sqlalchemy.Engine) -> sessionmaker[Session]:
    return session_factory(engine)
