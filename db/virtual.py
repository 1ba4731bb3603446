"""VirtualLedger: the real tables in memory, on a clock that its owner sets. For simulations: nothing of it lasts."""

from __future__ import annotations

import sqlite3

import sqlalchemy
from sqlalchemy import event
from sqlalchemy.orm import Session, sessionmaker
from sqlalchemy.pool import StaticPool

from db import dry_runs, models, schedule_models  # noqa: F401 - their tables join the metadata
from db.base import Base
from db.session import session_factory

BEGINNING = 1e6  # of the clock, in seconds since 1970: in the ledger, 0 means never
JULIAN_1970, DAY = 2440587.5, 86400.0


class VirtualLedger:
    """`now`: seconds since the beginning, to a tenth of a millisecond. One transaction at a time."""

    def __init__(self) -> None:
        self.now = 0.0
        engine = sqlalchemy.create_engine("sqlite://", poolclass=StaticPool)

        @event.listens_for(engine, "connect")
        def configure(connection: sqlite3.Connection, record: object) -> None:
            connection.isolation_level = None  # as in db.session
            # What db.session.db_now is compiled to. SQLite lets a connection have its own in place of a built-in one.
            connection.create_function("julianday", 1, lambda _: JULIAN_1970 + (BEGINNING + self.now) / DAY)

        @event.listens_for(engine, "begin")
        def begin(connection: sqlalchemy.Connection) -> None:
            connection.exec_driver_sql("BEGIN")

        Base.metadata.create_all(engine)
        self.sessions: sessionmaker[Session] = session_factory(engine)

    @staticmethod
    def seconds(stored: float) -> float:
        """A time of the tables as `now` is counted."""
        return round(stored - BEGINNING, 4)
