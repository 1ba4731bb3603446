"""What must be sent to the queue now. The database is the truth; a message is a hint that may be lost or doubled.

`due` is the one producer's list: whoever made work due (a submission, a split, a finished shard) calls it after the
commit, and every process calls it every few seconds. It marks what it returns, so that two callers send nothing twice;
a caller whose broker refuses a message gives it back with `unsent`. What was sent and never taken up comes again after
`redispatch_seconds`, and a running shard as soon as its lease is dead.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from sqlalchemy import ColumnElement, ScalarSelect, and_, exists, func, or_, select, update
from sqlalchemy.orm import Session

from db.jobs import UNLEASED
from db.models import Job, JobStatus, Shard, ShardStatus
from db.session import db_now

UNSYNCED = {"synchronize_session": False}


@dataclass(frozen=True, slots=True)
class Wakeup:
    """A message to send: the task and the id of its job (split, merge) or shard (run)."""

    task: Literal["split", "run", "merge"]
    id: str | int


def due(session: Session, *, window: int, redispatch_seconds: float, limit: int = 200) -> list[Wakeup]:
    """At most `limit` wakeups to send once this transaction is committed, marked as sent.

    No job ever has more than `window` shards that were sent and are not done: the broker holds a bounded number of
    messages whatever the job's size. Rows that another transaction holds are left to the next call.
    """
    stale = db_now() - redispatch_seconds
    _cancel_abandoned(session)
    found = [Wakeup("split", job_id) for job_id in _mark_jobs(session, _to_split(stale), limit)]
    found += [Wakeup("merge", job_id) for job_id in _mark_jobs(session, _to_merge(stale), limit - len(found))]
    # Jobs are locked before shards, as everywhere.
    for job_id in _with_room(session, window, limit - len(found)):
        found += [Wakeup("run", shard_id) for shard_id in _fill(session, job_id, window, limit - len(found))]
    found += [Wakeup("run", shard_id) for shard_id in _mark_again(session, stale, limit - len(found))]
    return found


def unsent(session: Session, wakeups: Sequence[Wakeup]) -> None:
    """The broker took none of these: let the next `due` return them at once."""
    for table, tasks in ((Job, ("split", "merge")), (Shard, ("run",))):
        ids = [wakeup.id for wakeup in wakeups if wakeup.task in tasks]
        session.execute(update(table).where(table.id.in_(ids)).values(dispatched_at=0.0), execution_options=UNSYNCED)


def _cancel_abandoned(session: Session) -> None:
    """A shard of a cancelling job whose worker died will not be taken up again: cancelled here."""
    dead = and_(Shard.status == ShardStatus.RUNNING, Shard.lease_until < db_now())
    held = (
        select(Job.id)
        .where(Job.status == JobStatus.CANCELLING, exists().where(Shard.job_id == Job.id, dead))
        .with_for_update(key_share=True, skip_locked=True)
    )
    for job_id in session.scalars(held).all():
        session.execute(
            update(Shard)
            .where(Shard.job_id == job_id, dead)
            .values(status=ShardStatus.CANCELLED, fence=Shard.fence + 1, **UNLEASED),
            execution_options=UNSYNCED,
        )


def _to_split(stale: ColumnElement[float]) -> ColumnElement[bool]:
    free = or_(Job.lease_until.is_(None), Job.lease_until < db_now())
    return and_(Job.status == JobStatus.VALIDATING, free, Job.dispatched_at < stale)


def _to_merge(stale: ColumnElement[float]) -> ColumnElement[bool]:
    running = exists().where(Shard.job_id == Job.id, Shard.status == ShardStatus.RUNNING)
    still = and_(Job.status == JobStatus.CANCELLING, ~running)
    return and_(or_(Job.status == JobStatus.FINALIZING, still), Job.dispatched_at < stale)


def _mark_jobs(session: Session, condition: ColumnElement[bool], limit: int) -> list[str]:
    chosen = (
        select(Job.id)
        .where(condition)
        .order_by(Job.created_at, Job.id)
        .limit(limit)
        .with_for_update(key_share=True, skip_locked=True)
    )
    return _mark(session, Job, list(session.scalars(chosen)))


def _mark(session: Session, table: Any, ids: list[Any]) -> list[Any]:
    """Rows that the transaction holds are marked as sent now."""
    if ids:
        session.execute(
            update(table).where(table.id.in_(ids)).values(dispatched_at=db_now()), execution_options=UNSYNCED
        )
    return ids


def _num_sent(job_id: Any) -> ScalarSelect[int]:
    """Shards of a job that hold a place in its window: sent, or running."""
    pending = and_(Shard.status == ShardStatus.PENDING, Shard.dispatched_at > 0.0)
    held = and_(Shard.job_id == job_id, or_(Shard.status == ShardStatus.RUNNING, pending))
    return select(func.count()).select_from(Shard).where(held).scalar_subquery()


def _waiting(job_id: Any) -> ColumnElement[bool]:
    return and_(Shard.job_id == job_id, Shard.status == ShardStatus.PENDING, Shard.dispatched_at == 0.0)


def _with_room(session: Session, window: int, limit: int) -> list[str]:
    """Running jobs, oldest first, with a waiting shard and less than a window of sent ones. Holds their rows."""
    query = (
        select(Job.id)
        .where(Job.status == JobStatus.RUNNING, exists().where(_waiting(Job.id)), _num_sent(Job.id) < window)
        .order_by(Job.created_at, Job.id)
        .limit(limit)
        .with_for_update(key_share=True, skip_locked=True)
    )
    return list(session.scalars(query))


def _fill(session: Session, job_id: str, window: int, limit: int) -> list[int]:
    """The first waiting shards of a job that we hold. Counted anew: the count before the lock may be out of date."""
    room = min(limit, window - (session.scalar(select(_num_sent(job_id))) or 0))
    if room <= 0:
        return []
    return _mark(
        session,
        Shard,
        list(session.scalars(select(Shard.id).where(_waiting(job_id)).order_by(Shard.index).limit(room))),
    )


def _mark_again(session: Session, stale: ColumnElement[float], limit: int) -> list[int]:
    """Sent shards whose message must be lost, and running ones whose worker must be dead. They keep their place."""
    lost = and_(Shard.status == ShardStatus.PENDING, Shard.dispatched_at > 0.0, Shard.dispatched_at < stale)
    silent = or_(Shard.dispatched_at < Shard.lease_until, Shard.dispatched_at < stale)
    dead = and_(Shard.status == ShardStatus.RUNNING, Shard.lease_until < db_now(), silent)
    chosen = (
        select(Shard.id)
        .join(Job, Job.id == Shard.job_id)
        .where(Job.status == JobStatus.RUNNING, or_(lost, dead))
        .order_by(Shard.id)
        .limit(limit)
        .with_for_update(of=Shard, skip_locked=True)
    )
    return _mark(session, Shard, list(session.scalars(chosen)))
