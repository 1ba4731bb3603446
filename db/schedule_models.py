"""The tables of schedules and their runs."""

from __future__ import annotations

import enum
from typing import Any

from sqlalchemy import JSON, BigInteger, Boolean, ForeignKey, Index, Integer, String, UniqueConstraint, false, text
from sqlalchemy.orm import Mapped, mapped_column

from db.base import Base, text_enum
from db.models import tenant_column


class RunStatus(enum.StrEnum):
    """What became of a fire time. A started run has a job, whose status goes on from there."""

    WAITING = "waiting"  # for its input, its turn, or simply the next sweep
    STARTED = "started"
    SKIPPED = "skipped"  # by a policy
    FAILED = "failed"  # it never became a job


class Trigger(enum.StrEnum):
    SCHEDULE = "schedule"
    BACKFILL = "backfill"
    MANUAL = "manual"


class Schedule(Base):
    __tablename__ = "schedules"

    id: Mapped[str] = mapped_column(String(40), primary_key=True)
    tenant: Mapped[str] = tenant_column()
    name: Mapped[str] = mapped_column(String(128))
    spec: Mapped[dict[str, Any]] = mapped_column(JSON)
    paused: Mapped[bool] = mapped_column(Boolean, default=False, server_default=false())
    # The one thing that firing changes, by compare-and-set. None: it never fires again.
    next_at: Mapped[float | None]
    created_at: Mapped[float]

    __table_args__ = (UniqueConstraint("tenant", "name"), Index("schedules_by_next", "next_at"))


class ScheduleRun(Base):
    """One fire time of a schedule, and what became of it."""

    __tablename__ = "schedule_runs"

    id: Mapped[str] = mapped_column(String(40), primary_key=True)
    schedule_id: Mapped[str] = mapped_column(ForeignKey("schedules.id", ondelete="CASCADE"))
    fire_at: Mapped[float]
    trigger: Mapped[Trigger] = mapped_column(text_enum(Trigger))
    status: Mapped[RunStatus] = mapped_column(text_enum(RunStatus), default=RunStatus.WAITING)
    reason: Mapped[str | None] = mapped_column(String(4096))
    job_id: Mapped[str | None] = mapped_column(ForeignKey("jobs.id", ondelete="SET NULL"))
    created_at: Mapped[float]
    # While waiting: when to look again (moved by compare-and-set, so that one process looks), and since when its input
    # was found wanting. `parallel`: how many runs of its backfill may be at work at once.
    try_at: Mapped[float] = mapped_column(default=0.0, server_default=text("0"))
    failing_since: Mapped[float | None]
    parallel: Mapped[int] = mapped_column(Integer, default=1, server_default=text("1"))
    # The window: when to pause its job, and whether it was this that paused it.
    window_until: Mapped[float | None]
    window_paused: Mapped[bool] = mapped_column(Boolean, default=False, server_default=false())
    # Of a run that computes only new rows: rows of the input, and those of them that earlier runs had.
    rows_input: Mapped[int | None] = mapped_column(BigInteger)
    rows_skipped: Mapped[int | None] = mapped_column(BigInteger)

    __table_args__ = (
        UniqueConstraint("schedule_id", "fire_at"),
        Index("schedule_runs_by_job", "job_id"),
        Index("schedule_runs_waiting", "status", "try_at"),
    )
