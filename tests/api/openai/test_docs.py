"""docs/openai.md: its examples run, and every route, setting, event and parameter there is stands in it."""

from __future__ import annotations

from pathlib import Path

import pytest

from api.app import create_app
from db.openai_body import HARMLESS, ChatBody, CompletionBody
from db.settings import Settings
from db.webhooks import EVENTS
from tests.docs.pages import examples, execute, text

TEXT = text("openai.md")


def test_the_examples_run(tmp_path: Path, service_url: str) -> None:
    """In the order of the page, in one folder."""
    environment = {"OPENAI_BASE_URL": f"{service_url}/v1", "OPENAI_API_KEY": "none", "NIGHTMILL_URL": service_url}
    printed = []
    for block in examples("openai.md"):
        printed.append(execute(block, tmp_path, environment))
        assert '"error"' not in printed[-1].replace('"error":null', ""), printed[-1]
    assert len(printed) == 5
    assert printed[0].splitlines() == [
        "review-0 IS THIS REVIEW POSIT",
        "review-1 IS THIS REVIEW POSIT",
    ]
    assert '"status":"' in printed[1]
    assert printed[2].strip() == "positive=True"
    assert "whsec_" in printed[4]


def test_every_route_is_told() -> None:
    routes = set()
    for path, methods in create_app(Settings()).openapi()["paths"].items():
        for method, operation in methods.items():
            if {"openai", "webhooks"} & set(operation["tags"]):
                routes.add(f"{method.upper()} {path}")
    assert sorted(route for route in routes if f"`{route}`" not in TEXT and f"`{route} " not in TEXT) == []
    assert len(routes) == 20


def test_every_parameter_is_told() -> None:
    names = {*ChatBody.model_fields, *CompletionBody.model_fields, *HARMLESS}
    assert sorted(name for name in names if f"`{name}`" not in TEXT) == []


def test_every_event_is_told() -> None:
    assert [event for event in EVENTS if f"`{event}`" not in TEXT] == []


@pytest.mark.parametrize("name", [name for name in Settings.model_fields if name.startswith(("openai_", "webhook_"))])
def test_every_setting_is_told(name: str) -> None:
    assert f"NIGHTMILL_{name.upper()}" in TEXT
