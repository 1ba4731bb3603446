"""What is kept of a job's course: how far it was at some moments, and how long its rows took at which time."""

from __future__ import annotations

from typing import Any

from sqlalchemy import ForeignKey, text
from sqlalchemy.orm import Mapped, mapped_column

from db.base import Base


class JobSample(Base):
    __tablename__ = "job_samples"

    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id", ondelete="CASCADE"), primary_key=True)
    at: Mapped[float] = mapped_column(primary_key=True)
    rows: Mapped[int]
    tokens: Mapped[int]
    bytes: Mapped[int] = mapped_column(default=0, server_default=text("0"))  # of the input of these rows


class JobWindow(Base):
    """What was measured in the shards that were finished in a span of time: db.windows."""

    __tablename__ = "job_windows"

    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id", ondelete="CASCADE"), primary_key=True)
    index: Mapped[int] = mapped_column(primary_key=True)  # of the spans since the job's first shard began
    seconds: Mapped[int]  # how long each of the job's is
    histograms: Mapped[dict[str, Any]]  # buckets by measure: db.histograms
