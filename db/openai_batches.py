"""The life of a batch beside its job's: created, its file checked, handed to a job, closed. The caller owns the
transaction.

Checking and closing are done by one process at a time, under a lease and a fence, as split and merge are (db.phases);
whichever API process is alive does them.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import and_, or_, select, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from db import control, openai_files, webhooks
from db.errors import IdempotencyConflict
from db.models import TERMINAL, Job
from db.openai_models import Batch, BatchStatus, OpenAIFile
from db.session import db_now

LEASE_SECONDS = 60.0
OPEN = (BatchStatus.VALIDATING, BatchStatus.RUNNING)
ASKED = ("endpoint", "input_file_id", "completion_window", "labels", "output_expires_seconds")


def create(session: Session, batch: Batch, window_seconds: float) -> Batch:
    """Insert a batch. A key used before gives the earlier batch. Raises IdempotencyConflict if that one is another."""
    earlier = _by_key(session, batch)
    if earlier is not None:
        return earlier
    batch.id = openai_files.new_id("batch_")
    batch.output_file_id, batch.error_file_id = openai_files.new_id("file-"), openai_files.new_id("file-")
    batch.status, batch.created_at, batch.expires_at = BatchStatus.VALIDATING, db_now(), db_now() + window_seconds
    try:
        with session.begin_nested():
            session.add(batch)
    except IntegrityError:
        earlier = _by_key(session, batch)
        if earlier is None:
            raise
        return earlier
    session.refresh(batch)
    return batch


def _by_key(session: Session, batch: Batch) -> Batch | None:
    if batch.idempotency_key is None:
        return None
    query = select(Batch).where(Batch.tenant == batch.tenant, Batch.idempotency_key == batch.idempotency_key)
    earlier = session.scalar(query)
    if earlier is not None and any(getattr(earlier, name) != getattr(batch, name) for name in ASKED):
        raise IdempotencyConflict(batch.idempotency_key)
    return earlier


def get(session: Session, tenant: str, batch_id: str) -> Batch | None:
    return session.scalar(select(Batch).where(Batch.id == batch_id, Batch.tenant == tenant))


def listing(session: Session, tenant: str, *, limit: int, after: Batch | None) -> list[Batch]:
    """Newest first."""
    query = select(Batch).where(Batch.tenant == tenant)
    return list(session.scalars(openai_files.page(query, Batch, limit=limit, after=after, ascending=False)))


def job_of(session: Session, batch: Batch) -> Job | None:
    return None if batch.job_id is None else session.get(Job, batch.job_id)


def cancel(session: Session, batch: Batch) -> Batch:
    """Stop a batch; asking again is fine. Raises JobNotCancellable when its job is past that point."""
    locked = session.scalar(select(Batch).where(Batch.id == batch.id).with_for_update())
    assert locked is not None
    if BatchStatus(locked.status) not in OPEN:
        return locked
    if locked.job_id is None:
        close(session, locked, BatchStatus.CANCELLED)
    else:
        control.cancel(session, locked.job_id, locked.tenant)
    locked.cancelling_at = locked.cancelling_at or session.scalar(select(db_now()))
    session.flush()
    return locked


# -- the work that one process does at a time --------------------------------------------------------------------------


def due(session: Session) -> Batch | None:
    """The oldest batch whose file is to be checked or that is to be closed, leased to the caller."""
    ended = select(Job.id).where(Job.id == Batch.job_id, Job.status.in_(TERMINAL)).exists()
    wanted = or_(Batch.status == BatchStatus.VALIDATING, and_(Batch.status == BatchStatus.RUNNING, ended))
    free = or_(Batch.lease_until.is_(None), Batch.lease_until < db_now())
    query = select(Batch).where(wanted, free).order_by(Batch.created_at, Batch.id).limit(1)
    batch = session.scalar(query.with_for_update(skip_locked=True))
    if batch is None:
        return None
    batch.fence += 1
    batch.lease_until = db_now() + LEASE_SECONDS
    session.flush()
    session.refresh(batch)
    return batch


def beat(session: Session, batch: Batch) -> bool:
    """Renew the lease; False when the batch is another's by now, or at its end."""
    return _write(session, batch, lease_until=db_now() + LEASE_SECONDS)


def give_back(session: Session, batch: Batch, pause: float = 0.0) -> None:
    """Another try, by whoever comes, after `pause` seconds."""
    _write(session, batch, lease_until=db_now() + pause)


def begin_closing(session: Session, batch: Batch) -> bool:
    return _write(session, batch, finalizing_at=batch.finalizing_at or db_now())


def _write(session: Session, batch: Batch, **values: Any) -> bool:
    held = (Batch.id == batch.id, Batch.fence == batch.fence, Batch.status.in_(OPEN))
    written = session.execute(
        update(Batch).where(*held).values(**values).returning(Batch.id),
        execution_options={"synchronize_session": False},
    )
    return written.first() is not None


def hand_over(session: Session, batch: Batch, job_id: str, model: str) -> bool:
    """The file is sound and the job is there, in the same transaction; False when the batch is not the caller's."""
    return _write(session, batch, status=BatchStatus.RUNNING, job_id=job_id, model=model, lease_until=None)


def end(session: Session, batch: Batch, status: BatchStatus, **values: Any) -> bool:
    """Close a batch that the caller holds, and tell its webhooks; False when it is not the caller's."""
    if not _write(session, batch, **values):
        return False
    now = session.get(Batch, batch.id, populate_existing=True)
    assert now is not None
    close(session, now, status)
    return True


def close(session: Session, batch: Batch, status: BatchStatus) -> None:
    batch.status, batch.ended_at, batch.lease_until = status, session.scalar(select(db_now())), None
    session.flush()
    webhooks.announce(session, batch.tenant, f"batch.{status.value}", batch.id)


def output_files(batch: Batch, sizes: dict[str, int]) -> list[OpenAIFile]:
    """The files of a batch that has ended, those with bytes. `sizes` by file id."""
    names = {batch.output_file_id: "output", batch.error_file_id: "error"}
    return [
        OpenAIFile(
            id=file_id,
            filename=f"{batch.id}_{names[file_id]}.jsonl",
            purpose="batch_output",
            num_bytes=size,
            batch_id=batch.id,
        )
        for file_id, size in sizes.items()
        if size
    ]


def of_file(session: Session, tenant: str, file_id: str) -> Batch | None:
    """The batch whose output or errors the file has."""
    ours = or_(Batch.output_file_id == file_id, Batch.error_file_id == file_id)
    return session.scalar(select(Batch).where(Batch.tenant == tenant, ours))


def ended(batch: Batch) -> bool:
    return BatchStatus(batch.status).terminal
