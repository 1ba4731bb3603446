"""Webhooks that a tenant made to be in the way, by accident or not: they are refused, or cost nobody else anything."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
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
from db.accounts import ApiKey
from db.errors import InvalidWebhook
from db.openai_models import Delivery
from db.session import db_now
from db.settings import Settings
from tests.api.conftest import MemoryQueue
from tests.api.gate import Gate


class Slow:
    """Answers /held when `over` is set, /drip a byte at a time and never to the end, and the rest at once."""

    def __init__(self) -> None:
        self.over, self.told = threading.Event(), threading.Event()
        self.held: list[str] = []
        slow = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                self.rfile.read(int(self.headers["content-length"]))
                if self.path == "/drip":
                    self.wfile.write(b"HTTP/1.1 200 OK\r\nx: ")
                    while not slow.over.wait(0.02):
                        self.wfile.write(b"a")
                if self.path == "/held":
                    slow.held.append(self.path)
                    slow.over.wait()
                self.send_response(200)
                self.send_header("content-length", "0")
                self.end_headers()
                if self.path == "/quick":
                    slow.told.set()

            def log_message(self, format: str, *args: object) -> None:
                pass

        class Server(ThreadingHTTPServer):
            def handle_error(self, request: Any, client_address: Any) -> None:
                """The sender has gone, as it should."""

        self.server = Server(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.02,))
        self.thread.start()

    def close(self) -> None:
        self.over.set()
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()


@pytest.fixture
def slow() -> Iterator[Slow]:
    made = Slow()
    yield made
    made.close()


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


def test_an_attempt_has_an_end_however_slowly_its_bytes_come(gate: Gate, slow: Slow) -> None:
    stored(gate, "acme", f"{slow.url}/drip")
    announce(gate, "acme")
    sender = Postman(gate.services.settings, gate.sessions, seconds=0.5)
    thread = threading.Thread(target=sender.deliver_one)
    thread.start()
    thread.join(20)
    ended = not thread.is_alive()
    slow.over.set()
    thread.join()
    assert ended
    assert delivered(gate, "acme") == [("pending", 1, "no answer within 0.5 s")]


def test_slow_receivers_of_one_tenant_keep_nobody_else_waiting(gate: Gate, slow: Slow) -> None:
    """More deliveries than there are threads, all due before the other tenant's."""
    stored(gate, "acme", f"{slow.url}/held")
    stored(gate, "bolt", f"{slow.url}/quick")
    announce(gate, "acme", 2 * postman.AT_ONCE)
    announce(gate, "bolt")
    with gate.sessions.begin() as session:
        session.execute(update(Delivery).where(Delivery.object_id.like("job_acme_%")).values(next_at=0.0))
    settings = gate.services.settings.model_copy(update={"sweep_seconds": 0.02})
    sender = Postman(settings, gate.sessions, seconds=60)
    sender.start()
    told, held = slow.told.wait(20), list(slow.held)
    slow.over.set()
    sender.stop()
    assert told
    assert len(held) <= 1


def test_a_tenant_has_so_many_webhooks_and_no_more(gate: Gate) -> None:
    for number in range(webhooks.MOST - 1):
        stored(gate, "acme", f"{number}")
    body = {"url": "https://hook.example/"}
    (first, second) = (gate.call("acme admin", "POST", "/v1/webhooks", json=body) for _ in range(2))
    assert (first.status_code, second.status_code, second.json()["code"]) == (201, 429, "webhooks_exceeded")
    assert gate.call("bolt admin", "POST", "/v1/webhooks", json=body).status_code == 201
    assert gate.call("acme admin", "DELETE", f"/v1/webhooks/{first.json()['id']}").status_code == 204
    assert gate.call("acme admin", "POST", "/v1/webhooks", json=body).status_code == 201


def test_making_a_webhook_counts_against_the_key_s_rate(gate: Gate) -> None:
    with gate.sessions.begin() as session:
        session.execute(update(ApiKey).values(submissions=-1000.0, submissions_at=db_now()))
    answer = gate.call("acme admin", "POST", "/v1/webhooks", json={"url": "https://hook.example/"})
    assert (answer.status_code, answer.json()["code"]) == (429, "rate_exceeded")
