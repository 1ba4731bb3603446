"""Prometheus metrics. What the database knows is read from it at each scrape, so that it outlives a restart.

Workers are not scraped: each reports its engine's counters to the ledger every few seconds, and the API passes them on.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from sqlalchemy.orm import Session

from db.figures import Figures, figures
from db.models import Worker

CONTENT_TYPE = CONTENT_TYPE_LATEST
ENGINE = ("worker", "model")
TOKENS = ("prompt", "cached", "output", "computed", "forced")
Values = Sequence[tuple[tuple[str, ...], float]]  # of a family's series, by their labels


class Metrics:
    """One registry per app, so that two apps in one process do not share counts."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self.requests = Histogram(
            "nightmill_http_request_seconds",
            "Time to answer, by method, route and status.",
            ["method", "route", "status"],
            registry=self._registry,
        )

    def render(self, session: Session) -> bytes:
        """The exposition text, with the ledger's figures read now."""
        ledger = CollectorRegistry()
        ledger.register(_Ledger(figures(session)))
        return generate_latest(self._registry) + generate_latest(ledger)


class _Ledger(Collector):
    """The families that are made of one reading: a series is there only while there is something behind it."""

    def __init__(self, found: Figures) -> None:
        self._found = found

    def collect(self) -> Iterable[Metric]:
        yield from _jobs(self._found)
        yield from _queue(self._found)
        yield from _workers(self._found)
        yield from _engine(self._found.workers)


def _gauge(name: str, text: str, labels: tuple[str, ...], values: Values) -> Metric:
    return _filled(GaugeMetricFamily(name, text, labels=labels), values)


def _counter(name: str, text: str, labels: tuple[str, ...], values: Values) -> Metric:
    return _filled(CounterMetricFamily(name, text, labels=labels), values)


def _filled(family: GaugeMetricFamily | CounterMetricFamily, values: Values) -> Metric:
    for key, value in values:
        family.add_metric(key, value)
    return family


def _jobs(found: Figures) -> Iterator[Metric]:
    totals = found.totals
    yield _gauge("nightmill_jobs", "Jobs, by status.", ("status",), [((s.value,), n) for s, n in found.jobs.items()])
    outcomes = [((name,), totals[f"rows_{name}"]) for name in ("succeeded", "failed")]
    yield _gauge("nightmill_rows", "Rows of finished shards, by outcome.", ("outcome",), outcomes)
    kinds = [((name,), totals[f"{name}_tokens"]) for name in ("prompt", "cached", "output")]
    yield _gauge("nightmill_tokens", "Tokens of finished shards, by kind.", ("kind",), kinds)


def _queue(found: Figures) -> Iterator[Metric]:
    keys = [(str(queue.priority), queue.status.value, queue) for queue in found.queues]
    yield _gauge(
        "nightmill_queue_jobs",
        "Open jobs, by priority and status.",
        ("priority", "status"),
        [((priority, status), queue.jobs) for priority, status, queue in keys],
    )
    yield _gauge(
        "nightmill_queue_shards",
        "Shards of open jobs that are pending or running, by the job's priority and status.",
        ("priority", "status", "state"),
        [((priority, status, "pending"), queue.shards_pending) for priority, status, queue in keys]
        + [((priority, status, "running"), queue.shards_running) for priority, status, queue in keys],
    )
    text = "Rows of open jobs that are in no finished shard yet."
    yield _gauge("nightmill_queue_rows", text, (), [((), found.rows_open)])
    text = "Age of the oldest submitted job of which no shard was begun; 0: there is none."
    yield _gauge("nightmill_queue_oldest_seconds", text, (), [((), found.oldest_queued_seconds)])
    text = "Deliveries of webhooks that are due or will be tried again."
    yield _gauge("nightmill_webhook_deliveries_pending", text, (), [((), found.deliveries_pending)])


def _workers(found: Figures) -> Iterator[Metric]:
    yield _gauge("nightmill_workers", "Workers seen within the last minute.", (), [((), len(found.workers))])
    ages = [((worker.name,), max(0.0, found.now - worker.seen_at)) for worker in found.workers]
    yield _gauge("nightmill_worker_seen_seconds", "Time since a worker reported itself.", ("worker",), ages)
    peaks = [
        ((worker.name,), worker.stats["memory_bytes"]) for worker in found.workers if "memory_bytes" in worker.stats
    ]
    yield _gauge("nightmill_worker_memory_bytes", "Most memory that a worker has had so far.", ("worker",), peaks)


def _engine(found: list[Worker]) -> Iterator[Metric]:
    """What engines count grows until the worker loads another model; Prometheus takes that for a restart."""
    busy = [((worker.name, worker.model or ""), worker.stats) for worker in found if "steps" in worker.stats]

    def plain(field: str) -> Values:
        return [(key, stats[field]) for key, stats in busy if field in stats]

    def named(label: str, fields: dict[str, str]) -> tuple[tuple[str, ...], Values]:
        values: Values = [
            ((*key, name), stats[field]) for key, stats in busy for name, field in fields.items() if field in stats
        ]
        return (*ENGINE, label), values

    yield _counter("nightmill_engine_steps", "Steps of the engine.", ENGINE, plain("steps"))
    text = "Time spent in steps, by part: the model, waiting for masks of formats, and all parts together."
    parts = {"all": "step_seconds", "model": "model_seconds", "grammar": "grammar_seconds"}
    yield _counter("nightmill_engine_step_seconds", text, *named("part", parts))
    text = (
        "Tokens, by kind: of prompts, of these from the prefix cache, written, computed (with drafts and what was "
        "computed again), and written without asking the model because the format forces them."
    )
    yield _counter("nightmill_engine_tokens", text, *named("kind", {name: f"{name}_tokens" for name in TOKENS}))
    text = "Sequences that gave their cache back to older ones and were computed again."
    yield _counter("nightmill_engine_preemptions", text, ENGINE, plain("preemptions"))
    states = {"running": "running", "waiting": "waiting"}
    yield _gauge("nightmill_engine_sequences", "Rows in the engine, by state.", *named("state", states))
    text = "Rows that the engine computes together at most: with the running ones, how full its batch is."
    yield _gauge("nightmill_engine_max_sequences", text, ENGINE, plain("max_sequences"))
    blocks = {"used": "blocks_used", "cached": "blocks_cached", "total": "blocks_total"}
    text = "Blocks of the key/value cache: in use, kept for later prefixes, and all."
    yield _gauge("nightmill_engine_cache_blocks", text, *named("state", blocks))
    drafts = [
        ((*key, draft["name"], outcome), draft[outcome])
        for key, stats in busy
        for draft in stats.get("drafts", ())
        for outcome in ("proposed", "accepted")
    ]
    text = "Tokens guessed ahead, by drafter: verified by the model, and accepted."
    yield _counter("nightmill_engine_draft_tokens", text, (*ENGINE, "drafter", "outcome"), drafts)
