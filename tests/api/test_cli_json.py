"""Every command can answer as JSON, says its exit statuses, and is known to the shell."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from fastapi.testclient import TestClient
from typer.testing import CliRunner

from api.cli import app
from api.cli.friendly import EPILOG
from api.cli.run import Exit
from api.client import Client
from tests.api.ledger import summarize
from tests.api.test_client import Bridge

ROOT = typer.main.get_command(app)
# They serve until they are stopped: what they have to say is their log (NIGHTMILL_LOG_JSON).
SERVERS = {"api", "worker"}


def commands(group: Any, words: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    if hasattr(group, "commands"):
        for name, command in group.commands.items():
            yield from commands(command, (*words, name))
    else:
        yield " ".join(words), group


COMMANDS = dict(commands(ROOT))


def test_every_command_has_json_and_tells_its_exit_statuses() -> None:
    assert len(COMMANDS) > 35
    with_json = {name for name, command in COMMANDS.items() if any("--json" in each.opts for each in command.params)}
    assert set(COMMANDS) - with_json == SERVERS
    assert [name for name, command in COMMANDS.items() if command.epilog != EPILOG] == []
    assert {int(number) for number in re.findall(r"\b\d+\b", EPILOG.replace("--strict", ""))} == set(Exit)


@pytest.fixture
def service(http: TestClient, monkeypatch: pytest.MonkeyPatch) -> TestClient:
    """The command line against the API in process."""

    class InProcess(Client):
        def __init__(self, *_: object, **__: object) -> None:
            super().__init__("http://test", transport=Bridge(http))

    monkeypatch.setattr("api.cli.serving.Client", InProcess)
    monkeypatch.setenv("NIGHTMILL_URL", "http://test")
    return http


def told(*words: str) -> Any:
    done = CliRunner().invoke(app, [*words, "--json"])
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)  # what differs is the command line's alone
def test_jobs_and_schedules(service: TestClient, tweets: Path) -> None:
    made = told("submit", str(tweets), "--recipe", "summarize", "--model", "m")
    assert (made["status"], made["counts"]["total"]) == ("validating", 3)
    assert told("status", made["id"])["id"] == made["id"]
    assert [job["id"] for job in told("status")["jobs"]] == [made["id"]]
    for word, status in (("pause", "paused"), ("resume", "validating"), ("cancel", "cancelled")):
        assert told(word, made["id"])["status"] == status
    assert told("results", made["id"]) == {"files": []}
    assert told("errors", made["id"]) == {"files": []}
    other = service.post("/v1/jobs", json=summarize(tweets)).json()["id"]
    assert other in {job["id"] for job in told("status", "--limit", "1")["jobs"]}
    daily = told("schedule", "create", "daily", str(tweets), "--cron", "0 1 * * *", "--recipe", "summarize")
    assert daily["name"] == "daily"
    assert told("schedule", "run", "daily")["trigger"] == "manual"
    assert told("schedule", "backfill", "daily", "2026-03-01", "2026-03-02")["known"] == 0
    assert [told("schedule", word, "daily")["paused"] for word in ("pause", "resume")] == [True, False]
    assert len(told("schedule", "show", "daily")["runs"]) == 3
    assert [schedule["name"] for schedule in told("schedule", "list")["schedules"]] == ["daily"]
    assert told("schedule", "delete", "daily") == {"deleted": "daily"}
    hook = told("webhooks", "create", "https://example.org/")
    assert hook["secret"].startswith("whsec_")
    assert told("webhooks", "deliveries", hook["id"])["deliveries"] == []
    assert [each["id"] for each in told("webhooks", "list")["webhooks"]] == [hook["id"]]
    assert told("webhooks", "delete", hook["id"]) == {"deleted": hook["id"]}


def test_what_needs_no_service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NIGHTMILL_HOME", str(tmp_path))
    assert told("version") == {"version": "0.1.0"}
    assert told("migrate")["database"] == f"sqlite:///{tmp_path / 'nightmill.db'}"
    assert {"name": "smollm2-135m", "path": None}.items() <= told("models", "list")["models"][0].items()
    made = told("keys", "create", "nightly")
    assert (made["key"]["name"], made["secret"][:3]) == ("nightly", "nm_")
    assert told("keys", "revoke", made["key"]["id"])["revoked_at"] is not None
    assert [key["id"] for key in told("keys", "list")["keys"]] == [made["key"]["id"]]
    assert told("tenants", "create", "acme", "--rows", "10")["max_queued_rows"] == 10
    assert told("tenants", "set", "acme", "--rows", "20")["max_queued_rows"] == 20
    assert told("tenants", "disable", "acme")["disabled_at"] is not None
    assert told("tenants", "enable", "acme")["disabled_at"] is None
    assert {tenant["name"] for tenant in told("tenants", "list")["tenants"]} == {"default", "acme"}
    assert told("audit", "--limit", "1")["entries"][0]["action"] == "tenant.change"


@pytest.mark.parametrize(("line", "found"), [("nightmill sched", ["schedule"]), ("nightmill keys re", ["revoke"])])
def test_the_shell_completes(line: str, found: list[str]) -> None:
    words = line.split()
    environment = {**os.environ, "_NIGHTMILL_COMPLETE": "complete_bash", "COMP_WORDS": line}
    environment["COMP_CWORD"] = str(len(words) - 1)
    program = "import sys; sys.argv[0] = 'nightmill'; from api.cli import app; app(prog_name='nightmill')"
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=60)
    assert (done.stdout.split(), done.returncode) == (found, 0), done.stderr
