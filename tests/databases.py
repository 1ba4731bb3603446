"""Migrated databases for tests: migrating an empty one takes longer than most tests, so it is done once a session.

SQLite: a migrated file is copied. PostgreSQL: one schema is lent to test after test, each time under a name of its own,
and emptied in between. Whatever a test left running looks for the old name and finds nothing, as if it were dropped.
"""

from __future__ import annotations

import shutil
import uuid
from pathlib import Path
from typing import Any

import sqlalchemy
from sqlalchemy import Connection, Engine, inspect, select, text

import db.openai_models
import db.sample_models
import db.schedule_models  # noqa: F401 - their tables belong to the metadata
from db.base import Base
from db.session import connect, migrate

LOCK_SECONDS = 30


def new_name() -> str:
    return f"nightmill_{uuid.uuid4().hex[:12]}"


class Postgres:
    """The schemas that a test session makes in the database at `address`."""

    def __init__(self, address: str) -> None:
        """Raises sqlalchemy.exc.OperationalError without a server."""
        self.address = address
        self.admin = sqlalchemy.create_engine(address, isolation_level="AUTOCOMMIT")
        self._free: str | None = None
        self._first_rows: dict[str, list[dict[str, Any]]] = {}
        self._execute("SELECT 1")

    def url(self, schema: str) -> str:
        separator = "&" if "?" in self.address else "?"
        return f"{self.address}{separator}options=-csearch_path%3D{schema}"

    def create(self) -> str:
        """A new schema without tables."""
        schema = new_name()
        self._execute(f"CREATE SCHEMA {schema}")
        return schema

    def drop(self, schema: str) -> None:
        self._execute(f"DROP SCHEMA {schema} CASCADE")

    def lend(self) -> str:
        """A schema as a migration leaves it; no other test has seen its name."""
        if self._free is None:
            return self._migrated()
        schema, lent = self._free, new_name()
        self._free = None
        self._execute(f"ALTER SCHEMA {schema} RENAME TO {lent}")
        return lent

    def take_back(self, lent: str) -> None:
        schema = new_name()
        self._execute(f"ALTER SCHEMA {lent} RENAME TO {schema}")
        engine = connect(self.url(schema))
        with engine.begin() as connection:
            connection.execute(text(f"SET LOCAL lock_timeout = '{LOCK_SECONDS}s'"))
            self._empty(connection)
        engine.dispose()
        self._free = schema

    def close(self) -> None:
        if self._free is not None:
            self.drop(self._free)
        self.admin.dispose()

    def _execute(self, statement: str) -> None:
        with self.admin.connect() as connection:
            connection.execute(text(statement))

    def _migrated(self) -> str:
        schema = self.create()
        engine = connect(self.url(schema))
        migrate(engine)
        assert set(inspect(engine).get_table_names()) == {"alembic_version", *Base.metadata.tables}  # all are emptied
        self._first_rows = rows(engine)
        engine.dispose()
        return schema

    def _empty(self, connection: Connection) -> None:
        """Deleting takes 15 ms, TRUNCATE of so many tables several times that."""
        tables = Base.metadata.sorted_tables
        connection.execute(text("ALTER TABLE audit DISABLE TRIGGER USER"))  # nothing else may delete from it
        connection.execute(text("; ".join(f"DELETE FROM {table.name}" for table in reversed(tables))))
        connection.execute(text("ALTER TABLE audit ENABLE TRIGGER USER"))
        sequences = "SELECT sequencename FROM pg_sequences WHERE schemaname = current_schema()"
        for name in connection.scalars(text(sequences)).all():
            connection.execute(text(f"ALTER SEQUENCE {name} RESTART"))
        for table in tables:
            if first := self._first_rows.get(table.name):
                connection.execute(table.insert(), first)


def rows(engine: Engine) -> dict[str, list[dict[str, Any]]]:
    """The rows of each table that has any."""
    with engine.connect() as connection:
        found = {
            table.name: [dict(row) for row in connection.execute(select(table)).mappings()]
            for table in Base.metadata.sorted_tables
        }
    return {name: values for name, values in found.items() if values}


class Sqlite:
    """Copies of one migrated file, which lies in `folder`."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / "migrated.db"
        engine = connect(f"sqlite:///{self.file}")
        migrate(engine)
        engine.dispose()  # the last connection puts the write-ahead log into the file
        assert [path.name for path in folder.iterdir()] == [self.file.name]

    def copy(self, path: Path) -> str:
        """The address of a migrated database at `path`."""
        shutil.copyfile(self.file, path)
        return f"sqlite:///{path}"
