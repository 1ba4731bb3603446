"""Webhooks: registered, signed, delivered once, tried again, logged; and never to where they may not go."""

from __future__ import annotations

import json
import re
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import openai
import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient
from sqlalchemy import update

from api.addresses import AddressRefused, check_url, target
from api.app import create_app
from api.deps import Services
from api.postman import Postman
from db import control, jobs, webhooks
from db.errors import InvalidWebhook
from db.models import TERMINAL
from db.openai_models import Batch, BatchStatus, Delivery
from db.settings import Settings
from tests.api.conftest import MemoryQueue
from tests.api.ledger import write


class Receiver:
    """Answers with `statuses`, one after the other, and remembers what came."""

    def __init__(self) -> None:
        self.statuses: list[int] = []
        self.received: list[tuple[dict[str, str], bytes]] = []
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                receiver.received.append(({name.lower(): value for name, value in self.headers.items()}, body))
                status = receiver.statuses.pop(0) if receiver.statuses else 200
                self.send_response(status)
                self.send_header("content-length", "0")
                if status == 302:
                    self.send_header("location", receiver.url)
                self.end_headers()

            def log_message(self, format: str, *args: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/hook?night=1"
        self.thread = threading.Thread(target=self.server.serve_forever)
        self.thread.start()

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    made = Receiver()
    yield made
    made.close()


def settings_of(home: Path, url: str, private: bool) -> Settings:
    """Nobody delivers by itself: the tests do."""
    return Settings(home=home, database_url=url, sweep_seconds=3600, webhook_private_addresses=private)


@pytest.fixture
def own(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[FastAPI]:
    """On SQLite, or as the test's parameter says."""
    url = request.getfixturevalue(f"{getattr(request, 'param', 'sqlite')}_url")
    app = create_app(settings_of(tmp_path / "home", url, True), MemoryQueue())
    with TestClient(app):
        yield app


@pytest.fixture
def api(own: FastAPI) -> TestClient:
    return TestClient(own)


@pytest.fixture
def services(own: FastAPI) -> Services:
    found: Services = own.state.services
    return found


@pytest.fixture
def postman(services: Services) -> Postman:
    return Postman(services.settings, services.sessions)


def register(api: TestClient, url: str, **more: Any) -> dict[str, Any]:
    answer = api.post("/v1/webhooks", json={"url": url, **more})
    assert answer.status_code == 201, answer.text
    found: dict[str, Any] = answer.json()
    return found


def announce(services: Services, type: str = "batch.completed") -> None:
    with services.sessions.begin() as session:
        webhooks.announce(session, "default", type, "batch_1")


def make_due(services: Services) -> None:
    with services.sessions.begin() as session:
        session.execute(update(Delivery).values(next_at=0.0))


def logged(api: TestClient, webhook: dict[str, Any]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = api.get(f"/v1/webhooks/{webhook['id']}/deliveries").json()["deliveries"]
    return found


def test_the_client_verifies_a_delivery(
    api: TestClient, services: Services, receiver: Receiver, postman: Postman
) -> None:
    webhook = register(api, receiver.url)
    announce(services)
    assert postman.deliver_one()
    assert not postman.deliver_one()
    ((headers, body),) = receiver.received
    with openai.OpenAI(api_key="none", webhook_secret=webhook["secret"]) as client:
        event = client.webhooks.unwrap(body, headers)
        assert (event.type, event.data.id, event.id) == ("batch.completed", "batch_1", headers["webhook-id"])
        with pytest.raises(openai.InvalidWebhookSignatureError):
            client.webhooks.unwrap(body.replace(b"batch_1", b"batch_2"), headers)
    (entry,) = logged(api, webhook)
    assert (entry["status"], entry["attempts"], entry["response_status"], entry["error"]) == ("delivered", 1, 200, None)
    assert headers["host"] == receiver.url.split("/")[2]


@pytest.mark.parametrize("own", ["sqlite", "postgres"], indirect=True)
def test_the_end_of_a_job_is_told_and_a_batch_s_job_is_told_as_the_batch(
    api: TestClient, services: Services, receiver: Receiver, postman: Postman
) -> None:
    webhook = register(api, receiver.url)
    path = write(services.settings.data_folder / "in.parquet", 2)
    job = {"input": str(path), "recipe": {"kind": "summarize"}, "model": "m"}
    ids = [api.post("/v1/jobs", json=job).json()["id"] for _ in range(4)]
    with services.sessions.begin() as session:
        jobs.fail_job(session, ids[0], code="broken", message="it broke")
        control.expire(session, ids[1])
        session.add(batch_of(ids[2]))
    for each in ids[2:]:
        api.post(f"/v1/jobs/{each}/cancel")
    assert not jobs_fail_again(services, ids[0])  # what has ended is told once
    while postman.deliver_one():
        pass
    with openai.OpenAI(api_key="none", webhook_secret=webhook["secret"]) as client:
        told = {client.webhooks.unwrap(body, headers).data.id: json.loads(body) for headers, body in receiver.received}
    assert {each: event["type"] for each, event in told.items()} == {
        ids[0]: "job.failed", ids[1]: "job.expired", ids[3]: "job.cancelled",
    }  # fmt: skip
    assert set(told[ids[0]]) == {"id", "object", "created_at", "type", "data"}
    assert {entry["object_id"] for entry in logged(api, webhook)} == set(told)


def jobs_fail_again(services: Services, job_id: str) -> bool:
    with services.sessions.begin() as session:
        return jobs.fail_job(session, job_id, code="again", message="")


def batch_of(job_id: str) -> Batch:
    times = {"created_at": 1.0, "expires_at": 2e9}
    files = {"input_file_id": "file-1", "output_file_id": "file-2", "error_file_id": "file-3"}
    asked = {"endpoint": "/v1/completions", "completion_window": "24h", "status": "running"}
    return Batch(id="batch_1", tenant="default", job_id=job_id, **times, **files, **asked)


def test_every_end_of_a_job_is_an_event() -> None:
    assert {f"job.{status.value}" for status in TERMINAL} == set(webhooks.JOB_EVENTS)
    assert {f"batch.{status.value}" for status in BatchStatus if status.terminal} == set(webhooks.BATCH_EVENTS)


def test_a_delivery_is_tried_again_and_at_last_given_up(
    api: TestClient, services: Services, receiver: Receiver, postman: Postman
) -> None:
    webhook = register(api, receiver.url)
    announce(services)
    num_attempts = len(webhooks.PAUSES) + 1
    receiver.statuses = [500, 302, *[503] * (num_attempts - 2)]
    for _ in range(num_attempts):
        make_due(services)
        assert postman.deliver_one()
    make_due(services)
    assert not postman.deliver_one()
    (entry,) = logged(api, webhook)
    assert (entry["status"], entry["attempts"], entry["error"]) == ("failed", num_attempts, "answered 503")
    assert len(receiver.received) == num_attempts  # A redirect is an answer like any other, and not followed.
    assert len({headers["webhook-id"] for headers, _ in receiver.received}) == 1


def test_the_pause_grows(api: TestClient, services: Services, receiver: Receiver, postman: Postman) -> None:
    webhook = register(api, receiver.url)
    announce(services)
    receiver.statuses = [500]
    postman.deliver_one()
    assert not postman.deliver_one()  # Not due yet.
    (entry,) = logged(api, webhook)
    assert (entry["status"], entry["next_at"] > entry["created_at"]) == ("pending", True)


@pytest.mark.parametrize("own", ["sqlite", "postgres"], indirect=True)
def test_two_processes_deliver_once(api: TestClient, services: Services, receiver: Receiver) -> None:
    register(api, receiver.url)
    for _ in range(20):
        announce(services)
    processes = [Postman(services.settings, services.sessions) for _ in range(4)]
    threads = [threading.Thread(target=lambda one=one: list(iter(one.deliver_one, False))) for one in processes]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    ids = [headers["webhook-id"] for headers, _ in receiver.received]
    assert (len(ids), len(set(ids))) == (20, 20)


@pytest.mark.parametrize("own", ["sqlite", "postgres"], indirect=True)
def test_a_process_that_died_is_followed_and_its_late_word_ignored(
    api: TestClient, services: Services, receiver: Receiver, postman: Postman
) -> None:
    webhook = register(api, receiver.url)
    announce(services)
    with services.sessions.begin() as session:
        taken = webhooks.take_due(session)
    assert taken is not None
    assert not postman.deliver_one()  # It is under way.
    make_due(services)
    assert postman.deliver_one()
    with services.sessions.begin() as session:
        assert not webhooks.settle(session, taken[0], delivered=False, status=None, error="late")
    assert logged(api, webhook)[0]["status"] == "delivered"


def test_only_what_is_asked_for_is_sent(
    api: TestClient, services: Services, receiver: Receiver, postman: Postman
) -> None:
    webhook = register(api, receiver.url, events=["batch.failed"])
    announce(services)
    announce(services, "batch.failed")
    while postman.deliver_one():
        pass
    assert [json.loads(body)["type"] for _, body in receiver.received] == ["batch.failed"]
    assert api.delete(f"/v1/webhooks/{webhook['id']}").status_code == 204
    announce(services, "batch.failed")
    assert not postman.deliver_one()
    assert api.get(f"/v1/webhooks/{webhook['id']}/deliveries").json()["code"] == "webhook_not_found"


def test_a_receiver_that_wants_no_more(
    api: TestClient, services: Services, receiver: Receiver, postman: Postman
) -> None:
    register(api, receiver.url)
    announce(services)
    receiver.statuses = [410]
    postman.deliver_one()
    (webhook,) = api.get("/v1/webhooks").json()["webhooks"]
    assert (webhook["enabled"], webhook["secret"]) == (False, None)
    announce(services)
    assert not postman.deliver_one()


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("http://example.org/", "must begin with https://"),
        ("ftp://example.org/", "must begin with https://"),
        ("https:///path", "has no host"),
        ("https://name:word@example.org/", "must not carry a name or password"),
        ("https://127.0.0.1/", "127.0.0.1 is no public address"),
        ("https://[::1]/", "::1 is no public address"),
        ("https://[::ffff:10.0.0.1]/", "is no public address"),
        ("https://169.254.169.254/latest", "is no public address"),
        ("https://example.org:0/", "has no host"),
        ("https://example.org:99999/", "is no URL"),
    ],
)
def test_addresses_that_are_refused(url: str, reason: str) -> None:
    with pytest.raises(InvalidWebhook, match=re.escape(reason)):
        check_url(url, private=False)


def test_webhooks_that_are_refused(api: TestClient) -> None:
    answer = api.post("/v1/webhooks", json={"url": "ftp://example.org/"})
    assert (answer.status_code, answer.json()["code"], answer.json()["field"]) == (422, "invalid_webhook", "url")
    answer = api.post("/v1/webhooks", json={"url": "https://example.org/", "events": ["batch.begun"]})
    assert (answer.status_code, answer.json()["field"]) == (422, "events")


def resolving(*addresses: str) -> Any:
    return lambda *_, **__: [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, 443)) for address in addresses]


def test_a_name_is_resolved_once_and_every_address_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "getaddrinfo", resolving("93.184.215.14"))
    found = target("https://example.org/hook?a=b", private=False)
    assert (found.url, found.host, found.name) == ("https://93.184.215.14:443/hook?a=b", "example.org", "example.org")
    monkeypatch.setattr(socket, "getaddrinfo", resolving("93.184.215.14", "10.0.0.7"))
    with pytest.raises(AddressRefused, match="leads to an address that is not public"):
        target("https://example.org/hook", private=False)


def test_a_name_that_turned_private_is_not_reached(
    api: TestClient, services: Services, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Registered when it was public; the log says why nothing was sent."""
    webhook = register(api, "https://example.org/hook")
    announce(services)
    strict = services.settings.model_copy(update={"webhook_private_addresses": False})
    monkeypatch.setattr(socket, "getaddrinfo", resolving("127.0.0.1"))
    assert Postman(strict, services.sessions).deliver_one()
    (entry,) = logged(api, webhook)
    assert (entry["status"], receiver.received) == ("pending", [])
    assert entry["error"] == "example.org leads to an address that is not public"  # which one is not told
