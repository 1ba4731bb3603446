"""Workers as they report themselves."""

from __future__ import annotations

from sqlalchemy import update

from db.models import Worker
from db.session import db_now
from db.workers import worker_gone, worker_seen, workers
from tests.db.ledger import Sessions


def age(sessions: Sessions, name: str, seconds: float) -> None:
    with sessions.begin() as session:
        session.execute(update(Worker).where(Worker.name == name).values(seen_at=db_now() - seconds))


def test_workers_are_listed_while_they_report_and_forgotten_after_a_day(sessions: Sessions) -> None:
    with sessions.begin() as session:
        worker_seen(session, "b@host", None, {"rows": 1})
        worker_seen(session, "a@host", "m", {})
        worker_seen(session, "b@host", "m", {"rows": 2})
        seen = workers(session)
        assert [(w.name, w.model, w.stats) for w in seen] == [("a@host", "m", {}), ("b@host", "m", {"rows": 2})]
        started = seen[1].started_at
        assert started <= seen[1].seen_at
    age(sessions, "b@host", 61)
    with sessions.begin() as session:
        assert [w.name for w in workers(session)] == ["a@host"]
        assert [w.name for w in workers(session, seconds=90)] == ["a@host", "b@host"]
        assert workers(session, seconds=90)[1].started_at == started
    age(sessions, "b@host", 86_401)
    with sessions.begin() as session:
        worker_seen(session, "a@host", "m", {})
        assert [w.name for w in workers(session, seconds=1e9)] == ["a@host"]


def test_one_that_ends_is_gone_at_once(sessions: Sessions) -> None:
    with sessions.begin() as session:
        worker_seen(session, "a@host", "m", {})
        worker_seen(session, "b@host", "m", {})
        worker_gone(session, "b@host")
        worker_gone(session, "b@host")
        assert [w.name for w in workers(session)] == ["a@host"]
