"""The only producer of queue messages: Celery tasks by name, ids only.

A message is a hint (the database is the truth), so sending never waits long and never retries: the sweep sends again.
Celery itself would cost the API half a second of start-up and its worker modules, so the message is written here, in
Celery's protocol 2 (docs.celeryq.dev, "Message Protocol"); a test compares it with Celery's own.
"""

from __future__ import annotations

import os
import socket
import uuid
from typing import TYPE_CHECKING, Any, Protocol

from db.dispatch import PRIORITIES, Wakeup

if TYPE_CHECKING:
    from kombu import Connection

QUEUE = "nightmill"
TRANSPORT = {"socket_timeout": 5, "socket_connect_timeout": 3, "max_connections": 10}


class QueueError(Exception):
    """The broker did not take a message or did not answer."""


class Queue(Protocol):
    """Where wake-ups go. One thread sends; any thread may `check`."""

    def send(self, wakeup: Wakeup) -> None: ...

    def check(self) -> int:
        """How many messages lie there. Raises QueueError unless the broker answers now."""
        ...

    def close(self) -> None: ...


class RedisQueue:
    """The Redis broker through kombu, as Celery's workers read it."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._connection: Connection | None = None  # of the sending thread

    def send(self, wakeup: Wakeup) -> None:
        headers, body = message(wakeup)
        try:
            if self._connection is None:
                self._connection = self._connect()
            # The default exchange of kombu's virtual transports delivers to the queue of the routing key's name.
            self._connection.Producer(serializer="json").publish(
                body,
                headers=headers,
                exchange="",
                routing_key=QUEUE,
                correlation_id=headers["id"],
                delivery_mode=2,
                priority=PRIORITIES[wakeup.task],
                retry=False,
            )
        except Exception as error:  # kombu lets errors of redis and of the socket through; all mean "not sent".
            self.close()
            raise QueueError(str(error)) from error

    def check(self) -> int:
        try:
            with self._connect() as connection:
                channel: Any = connection.default_channel  # of the Redis transport
                return int(channel._size(QUEUE))  # over the lists of all priorities
        except Exception as error:  # As in send.
            raise QueueError(str(error)) from error

    def close(self) -> None:
        """Forget the sending thread's connection; the next send opens another."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.release()

    def _connect(self) -> Connection:
        if not self.url:
            raise QueueError("no broker is set; give its address as REDIS_URL")
        from kombu import Connection  # Imported where used, so that a process that sends nothing starts faster.

        connection = Connection(self.url, transport_options=TRANSPORT)
        connection.ensure_connection(max_retries=1, interval_start=0, timeout=TRANSPORT["socket_connect_timeout"])
        return connection


def message(wakeup: Wakeup) -> tuple[dict[str, Any], tuple[Any, ...]]:
    """Headers and body of the task message for one wake-up."""
    task_id = str(uuid.uuid4())
    headers = {
        "lang": "py",
        "task": f"nightmill.{wakeup.task}",
        "id": task_id,
        "root_id": task_id,
        "parent_id": None,
        "group": None,
        "origin": f"{os.getpid()}@{socket.gethostname()}",
        "retries": 0,
        "eta": None,
        "expires": None,
        "timelimit": [None, None],
        "argsrepr": repr((wakeup.id,)),
        "kwargsrepr": "{}",
        "ignore_result": True,
    }
    embedded = {"callbacks": None, "errbacks": None, "chain": None, "chord": None}
    return headers, ((wakeup.id,), {}, embedded)
