"""The thread that turns what the database says is due into queue messages.

Every new job, lost message and dead lease takes this one way, so there is no second path that could be forgotten.
"""

from __future__ import annotations

import logging
import threading
import time

from sqlalchemy.orm import Session, sessionmaker

from api.queue import Queue, QueueError
from db import dispatch, firing, samples
from db.dispatch import Wakeup
from db.redaction import shown
from db.settings import Settings

log = logging.getLogger(__name__)
BATCH = 200
REST_SECONDS = 0.05  # after a sweep: whatever is submitted meanwhile has the next one in common


class Sweeper(threading.Thread):
    """Looks every `sweep_seconds`, and soon after `nudge`. Errors are logged and never fatal."""

    def __init__(self, settings: Settings, sessions: sessionmaker[Session], queue: Queue) -> None:
        super().__init__(name="sweeper", daemon=True)
        self._settings = settings
        self._sessions = sessions
        self._queue = queue
        self._wake = threading.Event()
        self._stopping = False
        self._failing = False

    def run(self) -> None:
        while not self._stopping:
            try:
                self.sweep()
                self._failing = False
            except Exception as error:  # The thread must outlive every failure of database and broker.
                if not self._failing:  # Once per outage, not every two seconds.
                    log.warning("the sweep failed and goes on trying: %s", shown(str(error)))
                self._failing = True
            time.sleep(REST_SECONDS)
            self._wake.wait(self._settings.sweep_seconds)
            self._wake.clear()
        self._queue.close()

    def sweep(self) -> int:
        """Fire schedules and send what is due; returns how many messages. Raises QueueError and database errors."""
        firing.sweep(self._sessions, self._settings)
        with self._sessions.begin() as session:
            samples.record(session, self._settings.lease_seconds)
        lying = self._queue.check()  # While the broker is away, nothing is marked and unmarked in vain.
        sent = 0
        while True:
            with self._sessions.begin() as session:
                wakeups = dispatch.due(
                    session,
                    window=self._settings.shard_window,
                    redispatch_seconds=self._settings.redispatch_seconds,
                    limit=BATCH,
                    lying=lying,
                )
            self._send(wakeups)
            sent += len(wakeups)
            if len(wakeups) < BATCH:
                return sent

    def _send(self, wakeups: list[Wakeup]) -> None:
        for i, wakeup in enumerate(wakeups):
            try:
                self._queue.send(wakeup)
            except QueueError:
                with self._sessions.begin() as session:
                    dispatch.unsent(session, wakeups[i:])
                raise

    def nudge(self) -> None:
        self._wake.set()

    def stop(self) -> None:
        """Ask the thread to end and wait for it, a few seconds at most."""
        self._stopping = True
        self._wake.set()
        if self.is_alive():
            self.join(timeout=10)
