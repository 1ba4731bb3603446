"""Connection, clock and migration, on each kind of database."""

from __future__ import annotations

import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import sqlalchemy
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import inspect, select, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session, sessionmaker

import db.dry_runs
import db.openai_models
import db.sample_models
import db.schedule_models  # noqa: F401 - their tables belong to the metadata
from db.base import Base
from db.models import Job, JobStatus, Shard, Upload
from db.session import MIGRATIONS, NEWEST, connect, db_now, migrate, revision


def checks(engine: sqlalchemy.Engine) -> dict[str, list[tuple[str | None, str]]]:
    """Check constraints by table: the comparison of Alembic leaves them out."""
    found = inspect(engine)
    names = [table for table in found.get_table_names() if table != "alembic_version"]
    return {name: sorted((c["name"], c["sqltext"]) for c in found.get_check_constraints(name)) for name in names}


def test_migrations_make_exactly_the_models(empty_database_url: str) -> None:
    engine = connect(empty_database_url)
    migrate(engine)
    with engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_server_default": True})
        assert compare_metadata(context, Base.metadata) == []
        assert context.get_current_revision() == NEWEST
    migrated = checks(engine)
    with engine.begin() as connection:
        Base.metadata.drop_all(connection)
        Base.metadata.create_all(connection)
    assert checks(engine) == migrated
    assert [name for name, _ in migrated["jobs"]] == ["jobstatus", "rows_add_up", "rows_not_negative"]
    engine.dispose()


def test_a_database_of_the_first_revision_is_brought_up_with_its_rows(empty_database_url: str) -> None:
    engine = connect(empty_database_url)
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS))
    with engine.begin() as connection:
        config.attributes["connection"] = connection
        command.upgrade(config, "0001")
        values = "'j', 'running', '{}', '/out', 5, 0, 0, 0, 0, 0, 0, 1.5, 2.5, 0, 1"
        connection.execute(
            text(
                "INSERT INTO jobs (id, status, spec, output_uri, num_rows, shards_done, rows_succeeded, rows_failed, "
                "prompt_tokens, cached_tokens, output_tokens, created_at, started_at, dispatched_at, attempts) "
                f"VALUES ({values})"
            )
        )
        connection.execute(
            text(
                'INSERT INTO shards (job_id, "index", file, start_row, stop_row, first_row, status, fence, attempts, '
                "dispatched_at, rows_succeeded, rows_failed, prompt_tokens, cached_tokens, output_tokens) "
                "VALUES ('j', 0, '/f', 0, 5, 0, 'running', 2, 1, 3.5, 0, 0, 0, 0, 0)"
            )
        )
    migrate(engine)
    with Session(engine) as session:
        job = session.get_one(Job, "j")
        assert (job.started_at, job.running_at, job.num_rows) == (2.5, None, 5)
        assert (job.fence, job.priority, job.expires_at, job.tenant) == (0, 0, None, "default")
        # SQLite alters the table of jobs by copying it: what refers to it must not go with the old one.
        shard = session.scalars(select(Shard)).one()
        assert (shard.job_id, shard.fence, shard.marks, shard.not_before) == ("j", 2, 0, 0.0)
        job.status = JobStatus.PAUSED
        session.commit()
    engine.dispose()


def test_the_newest_revision_is_known_without_alembic(engine: sqlalchemy.Engine) -> None:
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS))
    assert ScriptDirectory.from_config(config).get_current_head() == NEWEST
    assert revision(engine) == NEWEST


def test_migrating_twice_changes_nothing(engine: sqlalchemy.Engine) -> None:
    migrate(engine)
    with engine.connect() as connection:
        assert connection.scalar(text("SELECT count(*) FROM alembic_version")) == 1


def test_processes_that_start_together_migrate_once(empty_database_url: str) -> None:
    code = f"from db.session import connect, migrate; e = connect({empty_database_url!r}); migrate(e); e.dispose()"
    started = [
        subprocess.Popen([sys.executable, "-W", "error", "-c", code], stderr=subprocess.PIPE, text=True)
        for _ in range(4)
    ]
    assert [(process.communicate()[1], process.returncode) for process in started] == [("", 0)] * 4
    engine = connect(empty_database_url)
    assert set(inspect(engine).get_table_names()) == {"alembic_version", *Base.metadata.tables}
    engine.dispose()


def test_the_clock_is_wall_time_and_moves_within_a_transaction(sessions: sessionmaker[Session]) -> None:
    with sessions.begin() as session:
        first = session.scalar(select(db_now()))
        time.sleep(0.02)
        second = session.scalar(select(db_now()))
    assert first is not None
    assert second is not None
    assert abs(first - time.time()) < 5
    assert 0.01 < second - first < 5


def test_writers_that_read_first_all_succeed(sessions: sessionmaker[Session]) -> None:
    """With SQLite's deferred transactions these would fail with `database is locked` at once."""

    def add(number: int) -> None:
        with sessions.begin() as session:
            session.scalars(select(Upload)).all()
            session.add(Upload(id=str(number), filename="a", num_bytes=1, num_rows=1, created_at=db_now()))

    with ThreadPoolExecutor(16) as pool:
        list(pool.map(add, range(64)))
    with sessions.begin() as session:
        assert len(session.scalars(select(Upload)).all()) == 64


def test_sqlite_is_set_up_for_concurrency_and_durability(tmp_path: Path) -> None:
    engine = connect(f"sqlite:///{tmp_path / 'new' / 'folder' / 'a.db'}")
    with engine.connect() as connection:
        pragmas = {name: connection.scalar(text(f"PRAGMA {name}")) for name in ("journal_mode", "foreign_keys")}
        pragmas |= {name: connection.scalar(text(f"PRAGMA {name}")) for name in ("busy_timeout", "synchronous")}
    assert pragmas == {"journal_mode": "wal", "foreign_keys": 1, "busy_timeout": 30000, "synchronous": 2}
    engine.dispose()


@pytest.mark.parametrize("url", ["mysql://u:secret@h/x", "sqlite://", "sqlite:///:memory:"])
def test_other_databases_are_refused_without_showing_the_password(url: str) -> None:
    with pytest.raises(ValueError, match="SQLite file or PostgreSQL") as caught:
        connect(url)
    assert "secret" not in str(caught.value)


def test_a_silent_postgresql_holds_no_thread_for_long(postgres_url: str) -> None:
    """What the address says about that goes before ours."""
    for url, seconds in ((postgres_url, "10"), (f"{postgres_url}&connect_timeout=3", "3")):
        engine = connect(url)
        with engine.connect() as connection:
            given = connection.connection.dbapi_connection.info.get_parameters()  # type: ignore[union-attr]
        engine.dispose()
        assert given["connect_timeout"] == seconds
        assert given["tcp_user_timeout"] == "20000"


def test_a_process_frozen_inside_a_transaction_gives_its_locks_back(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("db.session.IDLE_SECONDS", 0.1)
    database = connect(postgres_url)
    with database.connect() as frozen, database.begin() as other:
        frozen.execute(text("SELECT pg_advisory_xact_lock(17)"))
        other.execute(text("SET LOCAL lock_timeout = '10s'"))
        other.execute(text("SELECT pg_advisory_xact_lock(17)"))
        with pytest.raises(DBAPIError, match="idle-in-transaction timeout"):
            frozen.execute(text("SELECT 1"))
    database.dispose()
