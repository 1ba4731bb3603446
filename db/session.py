"""The database connection: engine, session factory, the database's clock, and migration to the newest tables.

Sessions are plain and synchronous; the caller owns the transaction: `with sessions.begin() as session: …`. Keep a
transaction short and send messages after it: on SQLite it holds the one write lock from its first statement on.
"""

from __future__ import annotations

import sqlite3
import time
from pathlib import Path
from typing import Any

import sqlalchemy
from sqlalchemy import URL, Float, event, inspect, make_url, text
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.orm import Session, sessionmaker
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.functions import FunctionElement

from db.redaction import shown

BUSY_SECONDS = 30.0
# A process that is frozen inside a transaction keeps what it has locked no longer than this; thawed, it meets an error.
IDLE_SECONDS = 60.0
# A server that says nothing any more (its host is gone, the network is cut) must not hold a thread for the quarter of
# an hour that TCP goes on trying. What the URL says goes first. libpq's names; seconds, but tcp_user_timeout in ms.
PATIENCE = {
    "connect_timeout": 10,
    "keepalives_idle": 15,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 20_000,
}
MIGRATIONS = Path(__file__).parent / "migrations"
NEWEST = max(path.stem.removeprefix("r") for path in (MIGRATIONS / "versions").glob("r*.py"))
MIGRATION_LOCK = 0x6E69676874  # any constant of our own, for PostgreSQL's advisory lock


class db_now(FunctionElement[float]):  # noqa: N801 - read as the SQL function that it is
    """Seconds since 1970 on the database's own clock, at the moment the statement runs.

    Leases compare nothing else, so that a worker whose clock is wrong does no harm.
    """

    type = Float(53)
    inherit_cache = True


@compiles(db_now, "sqlite")
def _sqlite_now(element: db_now, compiler: SQLCompiler, **kwargs: Any) -> str:
    return "((julianday('now') - 2440587.5) * 86400.0)"


@compiles(db_now, "postgresql")
def _postgresql_now(element: db_now, compiler: SQLCompiler, **kwargs: Any) -> str:
    # now() would be the start of the transaction, and a long one would grant leases that are already old.
    return "CAST(extract(epoch FROM clock_timestamp()) AS double precision)"


def connect(url: str) -> sqlalchemy.Engine:
    """An engine for SQLite or PostgreSQL. Opens no connection yet; makes the folder of a SQLite file.

    Raises ValueError for another database.
    """
    address = make_url(url)
    if address.get_backend_name() == "postgresql":
        return _connect_postgresql(address)
    if address.get_backend_name() == "sqlite" and address.database not in (None, "", ":memory:"):
        return _connect_sqlite(address)
    raise ValueError(f"{shown(address.render_as_string())}: the database must be a SQLite file or PostgreSQL")


def _connect_postgresql(address: URL) -> sqlalchemy.Engine:
    patience = {name: value for name, value in PATIENCE.items() if name not in address.query}
    engine = sqlalchemy.create_engine(
        address, pool_pre_ping=True, pool_size=5, max_overflow=15, connect_args=patience, hide_parameters=True
    )

    @event.listens_for(engine, "connect")
    def configure(connection: Any, record: object) -> None:
        connection.execute(f"SET idle_in_transaction_session_timeout = {IDLE_SECONDS * 1000:.0f}")
        connection.commit()

    return engine


def _connect_sqlite(address: URL, foreign_keys: bool = True) -> sqlalchemy.Engine:
    Path(str(address.database)).parent.mkdir(parents=True, exist_ok=True)
    engine = sqlalchemy.create_engine(
        address, connect_args={"timeout": BUSY_SECONDS}, pool_size=5, max_overflow=15, hide_parameters=True
    )

    @event.listens_for(engine, "connect")
    def configure(connection: sqlite3.Connection, record: object) -> None:
        connection.isolation_level = None  # transactions begin where we say, not where the driver guesses
        _use_wal(connection)
        # synchronous stays FULL: a job that was accepted survives a power cut.
        connection.execute(f"PRAGMA foreign_keys = {'ON' if foreign_keys else 'OFF'}")

    @event.listens_for(engine, "begin")
    def begin(connection: sqlalchemy.Connection) -> None:
        # A deferred transaction that reads first and writes later fails at once when another writer came between.
        connection.exec_driver_sql("BEGIN IMMEDIATE")

    return engine


def _use_wal(connection: sqlite3.Connection) -> None:
    """Readers beside the writer. Switching needs the file alone and does not wait for the busy timeout, so we do."""
    deadline = time.monotonic() + BUSY_SECONDS
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or time.monotonic() > deadline:
                raise
            time.sleep(0.01)


def session_factory(engine: sqlalchemy.Engine) -> sessionmaker[Session]:
    """Sessions whose objects stay readable after the commit."""
    return sessionmaker(engine, expire_on_commit=False)


def migrate(engine: sqlalchemy.Engine) -> None:
    """Bring the tables to the newest revision, in one transaction. Any number of processes may call it at once."""
    if revision(engine) == NEWEST:
        return
    from alembic import command  # Imported where used: a fifth of a second that most starts need not spend.
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS).replace("%", "%%"))
    # SQLite changes a constraint by copying the table; dropping the old one would delete what refers to it.
    altering = _connect_sqlite(engine.url, foreign_keys=False) if engine.dialect.name == "sqlite" else engine
    with altering.begin() as connection:
        # SQLite's BEGIN IMMEDIATE already lets one in at a time.
        if engine.dialect.name == "postgresql":
            connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": MIGRATION_LOCK})
        config.attributes["connection"] = connection
        command.upgrade(config, "head")
    if altering is not engine:
        altering.dispose()


def revision(engine: sqlalchemy.Engine) -> str | None:
    """The revision the tables are at; None for a database without any."""
    with engine.connect() as connection:
        if not inspect(connection).has_table("alembic_version"):
            return None
        found: str | None = connection.scalar(text("SELECT version_num FROM alembic_version"))
        return found
