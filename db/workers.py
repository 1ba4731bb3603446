"""Worker processes as they last reported themselves. Informative only: leases decide who may work."""

from __future__ import annotations

from typing import Any

from sqlalchemy import delete, select, update
from sqlalchemy.orm import Session

from db.models import Worker
from db.session import db_now

FORGET_SECONDS = 86_400.0
PRESENT_SWEEPS = 5  # a worker reports itself with every sweep; one that was silent for so many is not there any more


def worker_seen(session: Session, name: str, model: str | None, stats: dict[str, Any]) -> None:
    """Record that a worker lives, which model it has loaded, and its counters. One silent for a day is forgotten."""
    session.execute(delete(Worker).where(Worker.seen_at < db_now() - FORGET_SECONDS))
    values = {"model": model, "stats": stats, "seen_at": db_now()}
    known = session.execute(update(Worker).where(Worker.name == name).values(**values).returning(Worker.name))
    if known.first() is None:
        session.add(Worker(name=name, started_at=db_now(), **values))
        session.flush()


def worker_gone(session: Session, name: str) -> None:
    """A worker that ends takes its record along."""
    session.execute(delete(Worker).where(Worker.name == name))


def workers(session: Session, *, seconds: float = 60.0) -> list[Worker]:
    """Workers that reported themselves within the last `seconds`, by name."""
    query = select(Worker).where(Worker.seen_at >= db_now() - seconds).order_by(Worker.name)
    return list(session.scalars(query, execution_options={"populate_existing": True}))
