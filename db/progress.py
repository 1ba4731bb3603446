"""What a job has done so far: rows and tokens, over its done and its running shards."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from db.models import Job, Shard, ShardStatus


@dataclass(frozen=True, slots=True)
class Progress:
    """Counts of a shard or a job. Rows that succeeded and rows that failed are distinct; tokens are of both."""

    rows_succeeded: int = 0
    rows_failed: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0

    @property
    def rows(self) -> int:
        return self.rows_succeeded + self.rows_failed

    def as_columns(self) -> dict[str, int]:
        """Column name -> value, the same on the tables jobs and shards."""
        return {name: getattr(self, name) for name in COLUMNS}


COLUMNS = tuple(field.name for field in fields(Progress))


def progress(session: Session, job_ids: Iterable[str]) -> dict[str, Progress]:
    """Progress by job id; unknown ids are absent. One statement, so that a finishing shard is counted exactly once."""
    running = (
        select(Shard.job_id, *(func.sum(getattr(Shard, name)).label(name) for name in COLUMNS))
        .where(Shard.status == ShardStatus.RUNNING, Shard.job_id.in_(ids := list(job_ids)))
        .group_by(Shard.job_id)
        .subquery()
    )
    totals = (getattr(Job, name) + func.coalesce(running.c[name], 0) for name in COLUMNS)
    rows = session.execute(
        select(Job.id, *totals).outerjoin(running, running.c.job_id == Job.id).where(Job.id.in_(ids))
    )
    return {job_id: Progress(*map(int, counts)) for job_id, *counts in rows}
