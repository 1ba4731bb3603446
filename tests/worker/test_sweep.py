"""The sweep of a worker outlives what befalls the broker."""

from __future__ import annotations

import threading

import pytest
import redis
from celery import Celery
from kombu.exceptions import OperationalError
from kombu.transport.redis import Channel

from tests.worker.factories import Office
from worker.app import CONFIG
from worker.sweep import Sweeper
from worker.tasks import counter


def test_a_broker_that_breaks_off_is_an_error_of_kombus(redis_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(channel: Channel, queue: str) -> int:
        raise redis.exceptions.ConnectionError("Connection closed by server.")

    app = Celery("x", broker=redis_url)
    app.conf.update(CONFIG)
    monkeypatch.setattr(Channel, "_size", gone)
    with pytest.raises(OperationalError, match="closed by server"):
        counter(app)()


def test_the_thread_outlives_every_error(office: Office) -> None:
    calls, enough = [0], threading.Event()

    def lying() -> int:
        calls[0] += 1
        if calls[0] == 1:
            raise RuntimeError("nobody thought of this")
        enough.set()
        return 0

    settings = office.process.settings.model_copy(update={"sweep_seconds": 0.05})
    object.__setattr__(office.process, "settings", settings)
    object.__setattr__(office.process, "lying", lying)
    sweeper = Sweeper(office.process)
    sweeper.start()
    assert enough.wait(20)
    sweeper.stop()
