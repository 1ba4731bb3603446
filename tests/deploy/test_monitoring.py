"""Prometheus asks what the API answers, and the Grafana dashboard draws what there is."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families
from sqlalchemy.orm import Session

from api.metrics import Metrics
from db.models import JobStatus
from db.session import connect, migrate
from db.settings import Settings
from db.workers import worker_seen

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
COMPOSE: dict[str, Any] = yaml.safe_load((DEPLOY.parent / "compose.yaml").read_text())
BOARD: dict[str, Any] = json.loads((DEPLOY / "grafana" / "nightmill.json").read_text())
PANELS = [panel for panel in BOARD["panels"] if panel["type"] != "row"]
EXPRESSIONS = [target["expr"] for panel in PANELS for target in panel["targets"]]
SELECTOR = re.compile(r"(nightmill_\w+)(?:\{([^}]*)\})?")
MATCHER = re.compile(r'(\w+)(=|!~|=~)"([^"]*)"')


@pytest.fixture
def exposition(settings: Settings) -> list[tuple[str, dict[str, str]]]:
    """Every sample, by name and labels, of a ledger with a busy worker, after one request."""
    fields = ("steps", "step_seconds", "model_seconds", "grammar_seconds", "preemptions", "max_sequences", "running")
    fields += ("waiting", "blocks_used", "blocks_cached", "blocks_total", "memory_bytes")
    fields += tuple(f"{kind}_tokens" for kind in ("prompt", "cached", "output", "computed", "forced"))
    drafts = [{"name": "prompt", "proposed": 1, "accepted": 1, "steps": 1}]
    metrics, database = Metrics(), connect(settings.database)
    metrics.requests.labels("GET", "/v1/jobs", "200").observe(0.1)
    migrate(database)
    with Session(database) as session:
        worker_seen(session, "host:1", "m", {**dict.fromkeys(fields, 1), "drafts": drafts})
        text = metrics.render(session).decode()
    database.dispose()
    return [(s.name, s.labels) for family in text_string_to_metric_families(text) for s in family.samples]


def test_every_panel_draws_metrics_and_labels_that_exist(exposition: list[tuple[str, dict[str, str]]]) -> None:
    queue = {"priority": "0", "status": "running", "state": "pending", "instance": "api:8642"}  # of no job here
    known = [*exposition, ("nightmill_queue_shards", queue)]
    assert len(EXPRESSIONS) > 15
    for expression in EXPRESSIONS:
        found = SELECTOR.findall(expression)
        assert found, expression
        for name, matchers in found:
            labels = [labels for each, labels in known if each == name]
            assert labels, f"{name} of {expression}"
            for label, operator, value in MATCHER.findall(matchers):
                values = {each[label] for each in labels}
                wanted = value.split("|")
                assert set(wanted) <= values, f"{label}{operator}{value} of {expression}"
        by = {label for group in re.findall(r"by \(([^)]*)\)", expression) for label in group.split(", ")}
        there = {label for name, _ in found for each, labels in known if each == name for label in labels}
        assert by <= there | {"instance"}, expression


def test_open_jobs_are_all_but_the_ended_ones() -> None:
    ended = next(value for label, operator, value in MATCHER.findall(EXPRESSIONS[0]) if operator == "!~")
    assert set(ended.split("|")) == {status.value for status in JobStatus if status.terminal}


def test_panels_are_told_apart_and_described() -> None:
    assert len({panel["id"] for panel in BOARD["panels"]}) == len(BOARD["panels"])
    assert [panel["title"] for panel in PANELS if not panel["description"]] == []
    places = [tuple(panel["gridPos"][name] for name in "xy") for panel in BOARD["panels"]]
    assert len(set(places)) == len(places)
    sources = {panel["datasource"]["uid"] for panel in PANELS}
    provisioned = yaml.safe_load((DEPLOY / "grafana/provisioning/datasources/prometheus.yaml").read_text())
    assert sources == {provisioned["datasources"][0]["uid"]}
    assert provisioned["datasources"][0]["url"] == "http://prometheus:9090"


def test_files_lie_where_compose_mounts_them() -> None:
    scrape = yaml.safe_load((DEPLOY / "prometheus.yml").read_text())["scrape_configs"][0]
    assert scrape["static_configs"] == [{"targets": ["api:8642"]}]
    assert scrape["authorization"] == {"credentials_file": "/run/secrets/metrics_key"}
    assert COMPOSE["services"]["prometheus"]["secrets"] == ["metrics_key"]
    for name in ("prometheus", "grafana"):
        for volume in COMPOSE["services"][name]["volumes"]:
            source = volume.split(":")[0]
            assert not source.startswith(".") or (DEPLOY.parent / source).exists(), volume
    provider = yaml.safe_load((DEPLOY / "grafana/provisioning/dashboards/nightmill.yaml").read_text())["providers"][0]
    mounted = next(volume for volume in COMPOSE["services"]["grafana"]["volumes"] if "nightmill.json" in volume)
    assert mounted.split(":")[1] == f"{provider['options']['path']}/nightmill.json"
