"""docs/reference/metrics.md: every Prometheus metric, from the registry and the families that /metrics shows."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from prometheus_client.core import Metric

from api.metrics import Metrics, _Ledger
from db.figures import TOTALS, Figures
from tests.docs.markdown import table

HEAD = """# Metrics

`GET /metrics` of the API, in Prometheus' text format, for keys of the tenant `default` where authentication is on.
What the ledger knows is read at each scrape, so it outlives a restart; workers report their engines' counters to the
ledger and are not scraped themselves.

"""


def render() -> str:
    rows = [
        (f"`{name(metric)}`", metric.type, ", ".join(labels), metric.documentation) for metric, labels in families()
    ]
    return HEAD + table(("metric", "type", "labels", "meaning"), rows)


def families() -> Iterator[tuple[Metric, list[str]]]:
    """Every family with its labels, of a ledger with nothing in it: a family is there all the same."""
    for collector in Metrics()._registry._collector_to_names:
        for metric in collector.collect():
            yield metric, _labels(collector)
    for metric in _Ledger(Figures(defaultdict(int), dict.fromkeys(TOTALS, 0), 0, [], 0.0, 0, [], 0.0)).collect():
        yield metric, _labels(metric)


def name(metric: Metric) -> str:
    """As it is written out and asked for: a counter's has `_total` behind it."""
    return f"{metric.name}_total" if metric.type == "counter" else metric.name


def _labels(owner: object) -> list[str]:
    return [f"`{label}`" for label in getattr(owner, "_labelnames", ())]
