"""Prometheus metrics. What the database knows is read from it at each scrape, so that it outlives a restart."""

from __future__ import annotations

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Gauge, Histogram, generate_latest
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from db.models import Job, JobStatus

CONTENT_TYPE = CONTENT_TYPE_LATEST


class Metrics:
    """One registry per app, so that two apps in one process do not share counts."""

    def __init__(self) -> None:
        registry = CollectorRegistry()
        self._registry = registry
        self.requests = Histogram(
            "nightmill_http_request_seconds",
            "Time to answer, by method, route and status.",
            ["method", "route", "status"],
            registry=registry,
        )
        self._jobs = Gauge("nightmill_jobs", "Jobs, by status.", ["status"], registry=registry)
        self._rows = Gauge("nightmill_rows", "Rows of finished shards, by outcome.", ["outcome"], registry=registry)
        self._tokens = Gauge("nightmill_tokens", "Tokens of finished shards, by kind.", ["kind"], registry=registry)

    def render(self, session: Session) -> bytes:
        """The exposition text, with gauges read now."""
        query = select(Job.status, func.count()).group_by(Job.status)
        counts = {status: count for status, count in session.execute(query)}  # noqa: C416 - rows are typed only unpacked
        for status in JobStatus:
            self._jobs.labels(status.value).set(counts.get(status, 0))
        columns = (Job.rows_succeeded, Job.rows_failed, Job.prompt_tokens, Job.cached_tokens, Job.output_tokens)
        sums = session.execute(select(*(func.coalesce(func.sum(column), 0) for column in columns))).one()
        self._rows.labels("succeeded").set(sums[0])
        self._rows.labels("failed").set(sums[1])
        for kind, total in zip(("prompt", "cached", "output"), sums[2:], strict=True):
            self._tokens.labels(kind).set(total)
        return generate_latest(self._registry)
