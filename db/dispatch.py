"""What must be sent to the queue now. The database is the truth; a message is a hint that may be lost or doubled.

`due` is the one producer's list: whoever made work due (a submission, a split, a finished shard) calls it after the
commit, and every process calls it every few seconds. It marks what it returns, so that two callers send nothing twice;
a caller whose broker refuses a message gives it back with `unsent`. What was sent and never taken up comes again after
`redispatch_seconds`, and a running shard as soon as its lease is dead; not while ENOUGH messages lie in the broker, as
then it is workers that are missing, and every round of messages would stay there until they come.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from sqlalchemy import ColumnElement, and_, func, literal, or_, select, update
from sqlalchemy.orm import Session

from db import dry_runs, quotas
from db.accounts import Tenant
from db.control import expire_due
from db.dry_runs import DryRun
from db.jobs import OPEN_SHARD
from db.models import STOPPING, Job, JobStatus, Shard, ShardStatus
from db.session import db_now
from db.turns import WORKING

# Of messages, as Celery has them on Redis: 0 comes first. A new job need not wait behind the shards of all others.
PRIORITIES = {"split": 0, "merge": 0, "plan": 0, "run": 6}
UNSYNCED = {"synchronize_session": False}
# Jobs that wait for their split with a message out. The others wait without one: each split asks again what is due, and
# a hundred thousand queued jobs must fill neither the broker nor the sweep.
MOST_SPLITS = 200
ENOUGH = 1000
NEVER = 1e-3  # later than what was never sent, and before everything that was


@dataclass(frozen=True, slots=True)
class Wakeup:
    """A message to send: the task and the id of its job (split, merge), shard (run) or dry run (plan)."""

    task: Literal["split", "run", "merge", "plan"]
    id: str | int


def due(session: Session, *, window: int, redispatch_seconds: float, limit: int = 200, lying: int = 0) -> list[Wakeup]:
    """At most `limit` wakeups to send once this transaction is committed, marked as sent. `lying`: messages in the
    broker.

    No job ever has more than `window` shards that were sent and not taken up, and no more than MOST_SPLITS jobs wait
    for a split that was sent: the broker holds a bounded number of messages whatever there is to do. Jobs that another
    transaction holds are left to the next call.
    """
    stale: ColumnElement[float] = db_now() - redispatch_seconds if lying < ENOUGH else literal(NEVER)
    expire_due(session)
    room = max(MOST_SPLITS - _num_splitting(session, stale), 0)
    found = [Wakeup("split", job_id) for job_id in _mark_jobs(session, _to_split(stale), min(room, limit))]
    begun = _mark(session, Job, _next_of_limited(session, min(room, limit) - len(found)))
    found += [Wakeup("split", job_id) for job_id in begun]
    found += [Wakeup("merge", job_id) for job_id in _mark_jobs(session, _to_merge(stale), limit - len(found))]
    found += [Wakeup("plan", plan_id) for plan_id in dry_runs.due(session, stale, limit - len(found))]
    for job_id in _hold_jobs(session, _to_run(window, stale), limit - len(found)):
        shard_ids = _to_send(session, job_id, window, stale, limit - len(found))
        found += [Wakeup("run", shard_id) for shard_id in _mark(session, Shard, shard_ids)]
        if len(found) == limit:
            break
    return found


def unsent(session: Session, wakeups: Sequence[Wakeup]) -> None:
    """The broker took none of these: let the next `due` return them at once."""
    for table, tasks in ((Job, ("split", "merge")), (Shard, ("run",)), (DryRun, ("plan",))):
        ids = [wakeup.id for wakeup in wakeups if wakeup.task in tasks]
        session.execute(update(table).where(table.id.in_(ids)).values(dispatched_at=0.0), execution_options=UNSYNCED)


def _free() -> ColumnElement[bool]:
    """Nobody splits or merges the job, nor is it pausing after a broken attempt."""
    return or_(Job.lease_until.is_(None), Job.lease_until < db_now())


def _to_split(stale: ColumnElement[float]) -> ColumnElement[bool]:
    """Not begun, or sent so long ago that the message must be lost; the begun ones alone where a quota bounds them."""
    unlimited = Job.tenant.not_in(select(Tenant.name).where(Tenant.max_running_jobs.is_not(None)))
    begun = Job.dispatched_at > 0.0
    return and_(Job.status == JobStatus.VALIDATING, _free(), Job.dispatched_at < stale, or_(unlimited, begun))


def _next_of_limited(session: Session, limit: int) -> list[str]:
    """Jobs to begin of tenants that may run only so many: as many as there is room for, held.

    The tenant is held too, so that two sweepers do not give away the same room.
    """
    found: list[str] = []
    query = select(Tenant).where(Tenant.max_running_jobs.is_not(None), _any_waiting(Tenant.name))
    for tenant in session.scalars(query.with_for_update(key_share=True, skip_locked=True)).all():
        num_running = quotas.num_running(session, tenant.name)
        room = min((tenant.max_running_jobs or 0) - num_running, limit - len(found))
        if room > 0:
            found += _hold_jobs(session, and_(Job.tenant == tenant.name, _waits(), _free()), room)
    return found


def _waits() -> ColumnElement[bool]:
    """For its split, which was not sent."""
    return and_(Job.status == JobStatus.VALIDATING, Job.dispatched_at == 0.0)


def _any_waiting(tenant: Any) -> ColumnElement[bool]:
    return select(Job.id).where(Job.tenant == tenant, _waits()).limit(1).scalar_subquery().is_not(None)


def _num_splitting(session: Session, stale: ColumnElement[float]) -> int:
    """Jobs whose split was sent and is not lost."""
    sent = and_(Job.status == JobStatus.VALIDATING, Job.dispatched_at >= stale)
    return session.scalar(select(func.count()).select_from(Job).where(sent)) or 0


def _to_merge(stale: ColumnElement[float]) -> ColumnElement[bool]:
    still = and_(Job.status.in_(STOPPING), ~_any(Job.id, Shard.status.in_(OPEN_SHARD)))
    return and_(or_(Job.status == JobStatus.FINALIZING, still), _free(), Job.dispatched_at < stale)


def _to_run(window: int, stale: ColumnElement[float]) -> ColumnElement[bool]:
    has_room = and_(_any(Job.id, _waiting()), _num_sent(Job.id) < window)
    return and_(Job.status.in_(WORKING), or_(has_room, _any(Job.id, _lost(stale)), _any(Job.id, _dead(stale))))


def _hold_jobs(session: Session, condition: ColumnElement[bool], limit: int) -> list[str]:
    """Such jobs by priority and age, held; those that another transaction holds are passed over."""
    chosen = select(Job.id).where(condition).order_by(Job.priority.desc(), Job.created_at, Job.id).limit(limit)
    return list(session.scalars(chosen.with_for_update(key_share=True, skip_locked=True)))


def _mark_jobs(session: Session, condition: ColumnElement[bool], limit: int) -> list[str]:
    return _mark(session, Job, _hold_jobs(session, condition, limit))


def _mark(session: Session, table: Any, ids: list[Any]) -> list[Any]:
    """Rows that the transaction holds are marked as sent now."""
    if ids:
        marked = update(table).where(table.id.in_(ids)).values(dispatched_at=db_now())
        session.execute(marked, execution_options=UNSYNCED)
    return ids


# -- shards of one job: every condition is a range of the index shards_of_job ------------------------------------------


def _waiting() -> ColumnElement[bool]:
    ready = Shard.not_before <= db_now()
    return and_(Shard.status == ShardStatus.PENDING, Shard.dispatched_at == 0.0, ready)


def _sent() -> ColumnElement[bool]:
    return and_(Shard.status == ShardStatus.PENDING, Shard.dispatched_at > 0.0)


def _lost(stale: ColumnElement[float]) -> ColumnElement[bool]:
    """Sent so long ago that the message must be lost."""
    return and_(_sent(), Shard.dispatched_at < stale)


def _dead(stale: ColumnElement[float]) -> ColumnElement[bool]:
    """Its worker must be dead, and nobody was told since."""
    untold = or_(Shard.dispatched_at < Shard.lease_until, Shard.dispatched_at < stale)
    return and_(Shard.status == ShardStatus.RUNNING, Shard.lease_until < db_now(), untold)


def _any(job_id: Any, condition: ColumnElement[bool]) -> ColumnElement[bool]:
    """Not EXISTS: PostgreSQL may turn that into a scan of all shards."""
    return select(Shard.id).where(Shard.job_id == job_id, condition).limit(1).scalar_subquery().is_not(None)


def _num_sent(job_id: Any) -> ColumnElement[int]:
    """Shards of a job that hold a place in its window: those that were sent and not taken up. What workers have at work
    is not counted, so that a job may have any number of them."""
    return select(func.count()).select_from(Shard).where(Shard.job_id == job_id, _sent()).scalar_subquery()


def _to_send(session: Session, job_id: str, window: int, stale: ColumnElement[float], limit: int) -> list[int]:
    """Shards of a job that we hold: those that were lost, which keep their place, and then the first waiting ones.

    The room is counted anew: the count before the lock may be out of date.
    """
    room = max(window - (session.scalar(select(_num_sent(job_id))) or 0), 0)
    found: list[int] = []
    for condition, most in ((_dead(stale), limit), (_lost(stale), limit), (_waiting(), room)):
        query = select(Shard.id).where(Shard.job_id == job_id, condition).order_by(Shard.index)
        found += session.scalars(query.limit(min(most, limit - len(found))))
    return found
