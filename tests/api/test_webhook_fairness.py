"""Webhooks that a tenant made to be in the way, by accident or not: they are refused, or cost nobody else anything."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import select, update

from api import postman
from api.addresses import check_url, target
from api.app import create_app
from api.postman import Postman
from db import webhooks
from db.errors import InvalidWebhook
from db.openai_models import Delivery
from db.settings import Settings
from tests.api.conftest import MemoryQueue
from tests.api.gate import Gate


@pytest.fixture
def gate(tmp_path: Path, sqlite_url: str) -> Iterator[Gate]:
    """Nobody delivers by itself: the tests do."""
    settings = Settings(
        home=tmp_path / "home", database_url=sqlite_url, sweep_seconds=3600, auth=True, webhook_private_addresses=True
    )
    with TestClient(create_app(settings, MemoryQueue())) as http:
        yield Gate(http, http.app.state.services, tmp_path / "tenants")  # type: ignore[attr-defined]


def stored(gate: Gate, tenant: str, url: str) -> None:
    """A webhook as it may lie in the database from before its address would have been refused."""
    with gate.sessions.begin() as session:
        webhooks.create(session, tenant, url, [])


def announce(gate: Gate, tenant: str, count: int = 1) -> None:
    with gate.sessions.begin() as session:
        for number in range(count):
            webhooks.announce(session, tenant, "job.completed", f"job_{tenant}_{number}")


def delivered(gate: Gate, tenant: str) -> list[tuple[str, int, str | None]]:
    with gate.sessions.begin() as session:
        found = session.scalars(select(Delivery).where(Delivery.object_id.like(f"job_{tenant}_%")))
        return [(each.status, each.attempts, each.error) for each in found]


def resolving(address: str) -> Any:
    return lambda *_, **__: [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, 443))]


@pytest.mark.parametrize(
    "url",
    [
        "https://hook.example/\x7f",
        "https://hook.example/ü",
        "https://hook.example/?q=ü",
        "https://ho\x7fok.example/",
        "https://a..example/",
        "https://.example/",
        f"https://{'a' * 64}.example/",
    ],
)
def test_what_cannot_be_sent_is_refused(gate: Gate, url: str) -> None:
    answer = gate.call("acme admin", "POST", "/v1/webhooks", json={"url": url})
    assert (answer.status_code, answer.json()["code"], answer.json()["field"]) == (422, "invalid_webhook", "url")


def test_a_name_of_other_letters_is_asked_for_in_ascii(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "getaddrinfo", resolving("93.184.215.14"))
    found = target("https://bücher.example:444/x", private=False)
    assert (found.host, found.name) == ("xn--bcher-kva.example:444", "xn--bcher-kva.example")
    with pytest.raises(InvalidWebhook, match=r"127\.0\.0\.1 is no public address"):
        check_url("https://１２７.0.0.1/", private=False)


def test_an_address_of_before_is_given_up_like_any_other(gate: Gate) -> None:
    stored(gate, "acme", "https://hook.example/\x7f")
    announce(gate, "acme")
    for _ in range(len(webhooks.PAUSES) + 1):
        with gate.sessions.begin() as session:
            session.execute(update(Delivery).values(next_at=0.0))
        assert Postman(gate.services.settings, gate.sessions).deliver_one()
    ((status, _, error),) = delivered(gate, "acme")
    assert (status, error is not None and "printable ASCII" in error) == ("failed", True)


def test_whatever_breaks_an_attempt_is_an_attempt(gate: Gate, monkeypatch: pytest.MonkeyPatch) -> None:
    stored(gate, "acme", "https://hook.example/")
    announce(gate, "acme")
    monkeypatch.setattr(postman, "signed", lambda *_: {}["no such header"])
    sender = Postman(gate.services.settings, gate.sessions)
    assert sender.deliver_one()
    assert not sender.deliver_one()  # its pause is kept
    assert delivered(gate, "acme") == [("pending", 1, "could not be sent")]
