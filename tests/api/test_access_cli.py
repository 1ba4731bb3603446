"""`nightmill keys`, `tenants` and `audit`, and the key that client and command line send."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest
from typer.testing import CliRunner

from api.cli import app
from api.client import Client
from db import keys
from db.accounts import Role
from db.session import connect, session_factory
from db.settings import Settings

runner = CliRunner()


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("NIGHTMILL_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("COLUMNS", "250")
    return tmp_path / "home"


def nightmill(*words: str, status: int = 0) -> str:
    result = runner.invoke(app, list(words))
    assert result.exit_code == status, result.output
    return result.output if status else result.stdout


def test_a_key_is_made_shown_once_listed_and_revoked(home: Path) -> None:
    secret = nightmill("keys", "create", "nightly", "--role", "admin", "--days", "30").strip()
    database = connect(Settings().database)
    with session_factory(database).begin() as session:
        found = keys.find(session, secret)
        assert found is not None
        assert (found.tenant, found.role, found.name) == ("default", Role.ADMIN, "nightly")
        assert round(((found.expires_at or 0) - found.created_at) / 86_400) == 30
        key_id = found.id
    listed = nightmill("keys", "list")
    assert secret not in listed
    assert secret[:11] in listed
    nightmill("keys", "revoke", key_id)
    assert "revoked" in nightmill("keys", "list")
    with session_factory(database).begin() as session:
        assert keys.find(session, secret) is None
    database.dispose()
    assert "there is no key 'key_none'" in nightmill("keys", "revoke", "key_none", status=2)
    assert "there is no tenant 'nobody'" in nightmill("keys", "create", "x", "--tenant", "nobody", status=2)


def test_tenants_are_made_changed_disabled_and_listed(tmp_path: Path) -> None:
    (tmp_path / "acme").mkdir()
    nightmill("tenants", "create", "acme", "--root", str(tmp_path / "acme"), "--rows", "1000", "--jobs", "2")
    nightmill("tenants", "set", "acme", "--rows", "-1", "--tokens", "5000")
    nightmill("tenants", "disable", "acme")
    row = next(line for line in nightmill("tenants", "list").splitlines() if "acme" in line)
    assert [cell.strip() for cell in row.strip("│").split("│")[:4]] == ["acme", "-", "5,000", "2"]
    assert "disabled" in row
    nightmill("tenants", "enable", "acme")
    assert "disabled" not in nightmill("tenants", "list")
    assert str(tmp_path / "acme") in nightmill("tenants", "list")
    assert "is neither the absolute path of a folder nor s3:" in nightmill(
        "tenants", "set", "acme", "--root", str(tmp_path / "none"), status=2
    )
    log = nightmill("audit")
    assert [log.count(action) for action in ("tenant.create", "tenant.change")] == [1, 3]
    assert "command line" in log
    assert nightmill("audit", "--tenant", "bolt").count("tenant.") == 0


@pytest.mark.parametrize(("given", "sent"), [(None, "Bearer nm_set"), ("nm_given", "Bearer nm_given"), ("", None)])
def test_the_client_sends_its_key(monkeypatch: pytest.MonkeyPatch, given: str | None, sent: str | None) -> None:
    monkeypatch.setenv("NIGHTMILL_API_KEY", "nm_set")
    seen: list[str | None] = []

    def answer(request: httpx.Request) -> httpx.Response:
        seen.append(request.headers.get("authorization"))
        return httpx.Response(200, json={"status": "ok", "version": "0"})

    with Client("http://127.0.0.1:1", api_key=given, transport=httpx.MockTransport(answer)) as client:
        client.ready()
    assert seen == [sent]


def test_a_redirect_does_not_carry_the_key_away(monkeypatch: pytest.MonkeyPatch) -> None:
    hosts: list[str] = []

    def answer(request: httpx.Request) -> httpx.Response:
        hosts.append(request.url.host)
        return httpx.Response(302, headers={"Location": "http://203.0.113.9/v1/jobs/j"})

    transport = httpx.MockTransport(answer)
    with Client("http://127.0.0.1:1", api_key="nm_secret", transport=transport) as client, pytest.raises(Exception):  # noqa: B017, PT011 - which error is tests/api/test_client's matter
        client.get("j")
    assert hosts == ["127.0.0.1"]
