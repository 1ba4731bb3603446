"""Process: what the tasks of one worker process share."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field

import structlog
from kombu.exceptions import OperationalError
from sqlalchemy.orm import Session, sessionmaker

from db import dispatch
from db.dispatch import Wakeup
from db.settings import Settings
from db.tracing import Tracer
from worker.runner import Runner

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Process:
    settings: Settings
    sessions: sessionmaker[Session]
    runner: Runner
    send: Callable[[Wakeup], None]  # raises kombu's OperationalError when the broker is away
    lying: Callable[[], int]  # messages in the broker; raises the same
    owner: str  # the name of this process on leases
    drain: threading.Event = field(default_factory=threading.Event)  # set: give the shards back and end
    tracer: Tracer = field(default_factory=Tracer)

    def dispatch(self, *, again: bool = False) -> None:
        """Send what is due; with `again`, what was sent and must have been lost, too. A broker that is away loses
        nothing: the next call sends it."""
        settings, lying = self.settings, dispatch.ENOUGH
        if again:
            try:
                lying = self.lying()
            except OperationalError as error:
                log.warning("the broker does not answer", error=str(error))
                return
        window, redispatch = settings.shard_window, settings.redispatch_seconds
        with self.sessions.begin() as session:
            due = dispatch.due(session, window=window, redispatch_seconds=redispatch, lying=lying)
        for position, wakeup in enumerate(due):
            try:
                self.send(wakeup)
            except OperationalError as error:
                log.warning("the broker takes no message", error=str(error))
                with self.sessions.begin() as session:
                    dispatch.unsent(session, due[position:])
                return
