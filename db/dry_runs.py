"""Dry runs: jobs that a client wants to know about before submitting them. A worker makes each one's plan.

A dry run is taken up under a lease and a fence, as a split is: a worker that lost its lease changes nothing any more.
One that broke is tried again, as often as a split; what no retry would change ends it with the reason. The caller owns
the transaction.
"""

from __future__ import annotations

import enum
import secrets
from typing import Any

from sqlalchemy import JSON, BigInteger, ColumnElement, Index, Integer, String, and_, delete, func, or_, select, update
from sqlalchemy.orm import Mapped, Session, mapped_column
from sqlalchemy.sql.selectable import Subquery

from db.accounts import DISABLED
from db.base import Base, text_enum
from db.errors import PlanNotFound
from db.jobs import storable
from db.models import tenant_column
from db.session import db_now
from db.specs import JobSpec

KEEP_SECONDS = 7 * 86_400.0
# With a message out. More would keep every thread of a worker from the shards of jobs; the others wait for their turn.
MOST_SENT = 2
UNSYNCED = {"synchronize_session": False}


class DryRunStatus(enum.StrEnum):
    WAITING = "waiting"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"

    @property
    def terminal(self) -> bool:
        return self in ENDED


ENDED = frozenset({DryRunStatus.DONE, DryRunStatus.FAILED})


class DryRun(Base):
    __tablename__ = "dry_runs"

    id: Mapped[str] = mapped_column(String(40), primary_key=True)
    tenant: Mapped[str] = tenant_column()
    spec: Mapped[dict[str, Any]] = mapped_column(JSON)
    sample_rows: Mapped[int] = mapped_column(Integer)
    num_rows: Mapped[int] = mapped_column(BigInteger)
    input_version: Mapped[str] = mapped_column(String(64))  # Dataset.version at the request
    status: Mapped[DryRunStatus] = mapped_column(text_enum(DryRunStatus), default=DryRunStatus.WAITING)
    rows_done: Mapped[int] = mapped_column(Integer, default=0)  # of the sample, as the latest beat told
    result: Mapped[dict[str, Any] | None] = mapped_column(JSON)
    error_code: Mapped[str | None] = mapped_column(String(64))
    error_message: Mapped[str | None] = mapped_column(String(4096))
    created_at: Mapped[float]
    started_at: Mapped[float | None]
    finished_at: Mapped[float | None]
    # As of a job's split (db.models.Job): when it was last sent, and lease, fence and attempts.
    dispatched_at: Mapped[float] = mapped_column(default=0.0)
    lease_until: Mapped[float | None]
    fence: Mapped[int] = mapped_column(Integer, default=0)
    attempts: Mapped[int] = mapped_column(Integer, default=0)

    __table_args__ = (Index("dry_runs_sent", "status", "dispatched_at"),)


def create(
    session: Session, spec: JobSpec, *, tenant: str, num_rows: int, input_version: str, sample_rows: int
) -> DryRun:
    """Write a checked one down; those that ended a week ago are forgotten."""
    session.execute(delete(DryRun).where(DryRun.status.in_(ENDED), DryRun.finished_at < db_now() - KEEP_SECONDS))
    made = DryRun(
        id=f"plan_{secrets.token_hex(12)}",
        tenant=tenant,
        spec=spec.model_dump(mode="json"),
        sample_rows=sample_rows,
        num_rows=num_rows,
        input_version=input_version,
    )
    made.created_at = db_now()
    session.add(made)
    session.flush()
    session.refresh(made)
    return made


def get(session: Session, plan_id: str, tenant: str) -> DryRun:
    """Raises PlanNotFound, also for another tenant's."""
    found = session.get(DryRun, plan_id, populate_existing=True)
    if found is None or found.tenant != tenant:
        raise PlanNotFound(plan_id)
    return found


def due(session: Session, stale: ColumnElement[float], limit: int) -> list[str]:
    """Ids to send once this transaction is committed, marked as sent. What was sent before `stale` is sent again.

    A tenant's oldest first, and the tenants' by turns: so long as one has fewer at work, the others wait.
    """
    open_ = DryRun.status.not_in(ENDED)
    # One that a worker is at needs no message, and takes a thread for as long as it lasts.
    held = and_(DryRun.status == DryRunStatus.RUNNING, DryRun.lease_until >= db_now())
    at_work = and_(open_, or_(DryRun.dispatched_at >= stale, held))
    sent = select(func.count()).select_from(DryRun).where(at_work)
    room = min(MOST_SENT - (session.scalar(sent) or 0), limit)
    if room <= 0:
        return []
    wanted = and_(open_, DryRun.tenant.not_in(DISABLED), _free(), DryRun.dispatched_at < stale)
    turns = _turns(wanted, at_work)
    query = select(DryRun.id).join(turns, turns.c.id == DryRun.id).where(wanted)
    # Among equals by chance: by age, two tenants with many plans would keep a third one's waiting to their end.
    query = query.order_by(turns.c.turn, func.random()).limit(room)
    ids = list(session.scalars(query.with_for_update(of=DryRun, skip_locked=True)))
    if ids:
        session.execute(
            update(DryRun).where(DryRun.id.in_(ids)).values(dispatched_at=db_now()), execution_options=UNSYNCED
        )
    return ids


def _turns(wanted: ColumnElement[bool], at_work: ColumnElement[bool]) -> Subquery:
    """The id of each that is wanted, and how many of its tenant's are at work or come before it."""
    busy = select(DryRun.tenant, func.count().label("number")).where(at_work).group_by(DryRun.tenant).subquery()
    older = func.row_number().over(partition_by=DryRun.tenant, order_by=(DryRun.created_at, DryRun.id))
    turn = (func.coalesce(busy.c.number, 0) + older).label("turn")
    return select(DryRun.id, turn).outerjoin(busy, busy.c.tenant == DryRun.tenant).where(wanted).subquery()


def _free() -> ColumnElement[bool]:
    """Nobody is at work on it, nor is it pausing after a broken attempt."""
    return or_(DryRun.lease_until.is_(None), DryRun.lease_until < db_now())


def begin(session: Session, plan_id: str, max_attempts: int, *, lease_seconds: float) -> DryRun | None:
    """Take one up; None when it has ended, or another worker holds it. An attempt beyond `max_attempts` fails it."""
    held = _locked(session, plan_id)
    now = session.scalar(select(db_now())) or 0.0
    if held is None or held.status.terminal or (held.lease_until or 0.0) > now:
        return None
    if held.attempts >= max_attempts:
        reason = held.error_message or "its worker ended"
        _end(held, held.error_code or "worker_lost", f"the plan broke off {held.attempts} times: {reason}")
        session.flush()
        return None
    held.status, held.attempts, held.fence = DryRunStatus.RUNNING, held.attempts + 1, held.fence + 1
    held.lease_until, held.started_at, held.rows_done = now + lease_seconds, held.started_at or now, 0
    session.flush()
    session.refresh(held)
    return held


def beat(session: Session, run: DryRun, *, lease_seconds: float, rows_done: int) -> bool:
    """Renew the lease and tell how far it got; False when it is another's, or over."""
    mine = and_(DryRun.id == run.id, DryRun.fence == run.fence, DryRun.lease_until.is_not(None))
    values = {"lease_until": db_now() + lease_seconds, "rows_done": rows_done}
    beaten = update(DryRun).where(mine).values(**values).returning(DryRun.id)
    return session.execute(beaten, execution_options=UNSYNCED).first() is not None


def finish(session: Session, run: DryRun, result: dict[str, Any], *, rows_done: int) -> bool:
    """`rows_done` of the sample were computed: fewer than asked for where the input has no more. False when it is
    another's by now."""
    held = _held(session, run)
    if held is None:
        return False
    held.status, held.result, held.rows_done = DryRunStatus.DONE, result, rows_done
    held.lease_until, held.finished_at, held.error_code, held.error_message = None, db_now(), None, None
    session.flush()
    return True


def give_back(session: Session, run: DryRun) -> bool:
    """The worker is told to stop: another may take it up at once, and the attempt is not counted."""
    held = _held(session, run)
    if held is None:
        return False
    held.status, held.attempts, held.lease_until = DryRunStatus.WAITING, held.attempts - 1, None
    held.dispatched_at = 0.0
    session.flush()
    return True


def retry(session: Session, run: DryRun, *, code: str, message: str, max_attempts: int, pause: float) -> bool:
    """The attempt broke: again after `pause` seconds, or after `max_attempts` it has failed with this reason."""
    held = _held(session, run)
    if held is None:
        return False
    if held.attempts >= max_attempts:
        _end(held, code, message)
    else:
        held.status, held.dispatched_at, held.lease_until = DryRunStatus.WAITING, 0.0, db_now() + pause
        held.error_code, held.error_message = storable(code, 64), storable(message, 4096)
    session.flush()
    return True


def fail(session: Session, run: DryRun, *, code: str, message: str) -> bool:
    """For a reason that no retry would change."""
    held = _held(session, run)
    if held is None:
        return False
    _end(held, code, message)
    session.flush()
    return True


def _end(held: DryRun, code: str, message: str) -> None:
    held.status, held.lease_until, held.finished_at = DryRunStatus.FAILED, None, db_now()
    held.error_code, held.error_message = storable(code, 64), storable(message, 4096)


def _held(session: Session, run: DryRun) -> DryRun | None:
    held = _locked(session, run.id)
    return held if held is not None and held.fence == run.fence and held.lease_until is not None else None


def _locked(session: Session, plan_id: str) -> DryRun | None:
    query = select(DryRun).where(DryRun.id == plan_id).with_for_update(key_share=True)
    return session.scalar(query, execution_options={"populate_existing": True})
