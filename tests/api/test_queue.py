"""Messages and the sweep."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
import redis
from celery import Celery
from fastapi.testclient import TestClient
from kombu import Connection

from api.deps import Services
from api.queue import QUEUE, QueueError, RedisQueue, message
from api.sweeper import REST_SECONDS, Sweeper
from db.dispatch import Wakeup
from tests.api.conftest import MemoryQueue
from tests.api.ledger import summarize
from worker.tasks import counter


def test_a_message_is_celerys() -> None:
    """Every header that Celery itself would write, except those that only its own clients read."""
    headers, body = message(Wakeup("run", 7))
    celerys = Celery(set_as_current=False).amqp.as_task_v2(
        headers["id"], "nightmill.run", args=(7,), ignore_result=True
    )
    own = {name: value for name, value in headers.items() if name != "origin"}
    theirs = {name: celerys.headers[name] for name in own}
    assert own == theirs
    assert body == celerys.body
    assert {name for name, value in celerys.headers.items() if value} - set(headers) == set()


def test_send_over_redis(redis_url: str) -> None:
    queue = RedisQueue(redis_url)
    assert queue.check() == 0
    for shard in (7, 8):
        queue.send(Wakeup("run", shard))
    queue.send(Wakeup("split", "job_x"))
    assert queue.check() == 3 == counter(Celery(broker=redis_url, set_as_current=False))()
    with Connection(redis_url) as connection:
        received = connection.SimpleQueue(QUEUE)
        urgent = received.get(timeout=5)
        urgent.ack()
        assert urgent.headers["task"] == "nightmill.split"
        first = received.get(timeout=5)
        first.ack()
        assert (first.headers["task"], first.payload[0]) == ("nightmill.run", [7])
        second = received.get(timeout=5)
        second.ack()
        assert second.payload[0] == [8]
        received.close()
    queue.close()


def test_no_broker() -> None:
    queue = RedisQueue("redis://127.0.0.1:1/0")
    started = time.monotonic()
    with pytest.raises(QueueError):
        queue.check()
    with pytest.raises(QueueError):
        queue.send(Wakeup("split", "job_x"))
    assert time.monotonic() - started < 8


def test_no_broker_is_set() -> None:
    with pytest.raises(QueueError, match="REDIS_URL"):
        RedisQueue("").check()


def test_a_restarted_broker_is_found_again(redis_url: str) -> None:
    queue = RedisQueue(redis_url)
    queue.send(Wakeup("run", 1))
    redis.Redis.from_url(redis_url).client_kill_filter(_type="normal", skipme=True)
    for _ in range(2):  # The first send may be what finds the connection dead.
        try:
            queue.send(Wakeup("run", 2))
            break
        except QueueError:
            continue
    else:
        pytest.fail("the queue did not come back")
    queue.close()


def test_a_message_that_was_not_sent_is_due_again(
    http: TestClient, tweets: Path, services: Services, queue: MemoryQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    services.sweeper.stop()  # Its own thread would be another that sends.
    queue.broken = "down"
    job_id = http.post("/v1/jobs", json=summarize(tweets)).json()["id"]
    monkeypatch.setattr(queue, "check", lambda: 0)  # The broker goes away between the check and the message.

    def refuse(wakeup: Wakeup) -> None:
        raise QueueError("down")

    with monkeypatch.context() as patch:
        patch.setattr(queue, "send", refuse)
        with pytest.raises(QueueError):
            services.sweeper.sweep()
    assert services.sweeper.sweep() == 1
    assert queue.sent == [Wakeup("split", job_id)]


def test_what_comes_close_together_has_one_sweep_in_common(services: Services, queue: MemoryQueue) -> None:
    sweeper, swept = Sweeper(services.settings, services.sessions, queue), list[float]()
    sweeper.sweep = lambda: swept.append(time.monotonic()) or 0  # type: ignore[method-assign, func-returns-value]
    sweeper.start()
    began = time.monotonic()
    while (elapsed := time.monotonic() - began) < 0.4:
        sweeper.nudge()
    sweeper.stop()
    assert 2 <= len(swept) <= elapsed / REST_SECONDS + 2
