"""worker.alive: a health check of the worker's own host."""

from __future__ import annotations

import socket

from sqlalchemy import update

from db.models import Worker
from db.session import db_now
from db.workers import worker_seen
from tests.worker.factories import Office
from worker.alive import alive


def test_a_worker_of_this_host_that_reported_itself_is_alive(office: Office) -> None:
    settings = office.process.settings
    assert not alive(settings)
    with office.sessions.begin() as session:
        worker_seen(session, "elsewhere:1", None, {})
    assert not alive(settings)
    with office.sessions.begin() as session:
        worker_seen(session, f"{socket.gethostname()}:1", None, {})
    assert alive(settings)
    with office.sessions.begin() as session:
        session.execute(update(Worker).values(seen_at=db_now() - 121))
    assert not alive(settings)
