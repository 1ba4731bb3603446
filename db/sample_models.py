"""The table of samples: how far a job was at some moments."""

from __future__ import annotations

from sqlalchemy import ForeignKey
from sqlalchemy.orm import Mapped, mapped_column

from db.base import Base


class JobSample(Base):
    __tablename__ = "job_samples"

    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id", ondelete="CASCADE"), primary_key=True)
    at: Mapped[float] = mapped_column(primary_key=True)
    rows: Mapped[int]
    tokens: Mapped[int]
