"""Secrets planted in settings and requests appear in no log, no answer, no output of a command and no manifest."""

from __future__ import annotations

import logging
import subprocess
import sys
from pathlib import Path

import pytest
from fastapi.testclient import TestClient
from typer.testing import CliRunner

from api import checks
from api.app import create_app
from api.cli import app as commands
from api.queue import RedisQueue
from db.redaction import shown
from db.settings import Settings
from tests.api.gate import Gate

PLANTED = "pl4nted-s3cret"
POSTGRES = f"postgresql+psycopg://night:{PLANTED}@127.0.0.1:1/ledger"
REDIS = f"redis://night:{PLANTED}@127.0.0.1:1/0"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (POSTGRES, "postgresql+psycopg://night:***@127.0.0.1:1/ledger"),
        (REDIS, "redis://night:***@127.0.0.1:1/0"),
        (f"redis://:{PLANTED}@h/0", "redis://:***@h/0"),
        (f"no answer from {REDIS}: refused", "no answer from redis://night:***@127.0.0.1:1/0: refused"),
        (f"postgresql://h/x?user=u&password={PLANTED}&sslmode=off", "postgresql://h/x?user=u&password=***&sslmode=off"),
        ("sqlite:////home/x.db", "sqlite:////home/x.db"),
        ("http://127.0.0.1:8642/v1", "http://127.0.0.1:8642/v1"),
    ],
)
def test_an_address_is_shown_without_its_password(text: str, expected: str) -> None:
    assert shown(text) == expected


def test_settings_do_not_show_what_is_secret() -> None:
    settings = Settings(database_url=POSTGRES, redis_url=REDIS, api_key=f"nm_{PLANTED}")
    assert PLANTED not in repr(settings)
    assert PLANTED not in str(settings)


def test_answers_and_logs_have_no_secret(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The database and the broker are away; a key is sent with every request."""
    caplog.set_level(logging.DEBUG)
    settings = Settings(home=tmp_path / "home", redis_url=REDIS, auth=True, sweep_seconds=0.05)
    answers = []
    app = create_app(settings)
    with TestClient(app, raise_server_exceptions=False) as http:
        gate = Gate(http, app.state.services, tmp_path / "tenants")
        secrets = [PLANTED, *gate.secrets.values()]
        paths = ("/readyz", "/v1/jobs", "/v1/workers", "/v1/models", "/metrics", "/v1/keys", "/v1/audit", "/v1/nope")
        answers += [gate.call(who, "GET", path).text for path in paths for who in list(gate.secrets)]
        answers.append(gate.call("acme submit", "POST", "/v1/jobs", json={"input": "/x", "extra": 1}).text)
        answers.append(gate.call("acme submit", "POST", "/v1/jobs", json={}).text)
        gate.submit("acme submit")
        app.state.services.database.dispose()
    assert len(answers) > 60
    assert [secret for secret in secrets if any(secret in text for text in answers)] == []
    assert [secret for secret in secrets if secret in caplog.text] == []
    assert "sweep failed" in caplog.text  # The broker's address was there to be told.


def test_the_database_that_is_away_is_not_told_with_its_password(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = Settings(home=tmp_path, database_url=POSTGRES, redis_url=REDIS)
    for check in (checks.database(settings), checks.queue(settings)):
        assert check.state is checks.State.ERROR
        assert PLANTED not in f"{check.found} {check.advice}"
    monkeypatch.setenv("NIGHTMILL_HOME", str(tmp_path))
    monkeypatch.setenv("NIGHTMILL_DATABASE_URL", POSTGRES)
    monkeypatch.setenv("NIGHTMILL_REDIS_URL", REDIS)
    for command in (["migrate"], ["keys", "list"], ["audit"]):
        result = CliRunner().invoke(commands, command)
        assert result.exit_code != 0
        assert PLANTED not in result.output
    with pytest.raises(Exception) as caught:  # noqa: PT011 - what it says is the matter
        RedisQueue(REDIS).check()
    assert PLANTED not in str(caught.value)


@pytest.mark.slow
@pytest.mark.parametrize("module", ["api", "worker"])
def test_a_process_that_cannot_start_tells_no_password(tmp_path: Path, module: str) -> None:
    environment = {
        "PATH": "", "NIGHTMILL_HOME": str(tmp_path), "NIGHTMILL_DATABASE_URL": f"mysql://u:{PLANTED}@h/x",
        "NIGHTMILL_REDIS_URL": REDIS, "NIGHTMILL_API_KEY": f"nm_{PLANTED}", "NIGHTMILL_LOG_LEVEL": "debug",
        "PYTHONPATH": str(Path(__file__).parents[2]),
    }  # fmt: skip
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", module],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        said = process.communicate(timeout=60)[0]
    except subprocess.TimeoutExpired:  # The worker goes on looking for its broker.
        process.kill()
        said = process.communicate()[0]
    assert ("the database must be a SQLite file or PostgreSQL" in said) or ("redis://night:**@127.0.0.1:1/0" in said)
    assert PLANTED not in said
