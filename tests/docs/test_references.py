"""docs/reference is what the code says now, and the code says what each thing means."""

from __future__ import annotations

import ast
import json
import re

import pytest
import typer

from api.app import create_app
from api.cli import app as command_line
from db.errors import InvalidDataset
from db.settings import Settings
from tests.docs import api_reference, commands_reference, references
from tests.docs.markdown import meaning
from tests.docs.pages import ROOT


@pytest.mark.parametrize("name", references.PAGES)
def test_the_reference_is_fresh(name: str) -> None:
    stale = (references.FOLDER / name).read_text() != references.NOTE + references.PAGES[name]()
    assert not stale, f"docs/reference/{name} is stale: run `make references` and commit it"


def test_every_setting_has_a_meaning() -> None:
    assert [name for name, field in Settings.model_fields.items() if not field.description] == []


def test_every_option_has_a_meaning() -> None:
    found = list(commands_reference.commands(typer.main.get_command(command_line), "nightmill"))
    assert len(found) > 30
    assert [name for name, command in found if not command.help] == []
    mute = [
        (name, each.name)
        for name, command in found
        for each in command.params
        if each.param_type_name == "option" and each.name != "help" and not each.help
    ]
    assert mute == []


def test_every_route_has_a_meaning_and_a_key() -> None:
    app = create_app(Settings())
    keys = dict(api_reference.needed(app))
    operations = {
        (method.upper(), path): operation
        for path, methods in app.openapi()["paths"].items()
        for method, operation in methods.items()
    }
    assert [route for route, operation in operations.items() if not operation.get("description")] == []
    assert {route for route in operations if keys[route] == "none"} == {("GET", "/healthz"), ("GET", "/readyz")}


def test_everything_that_a_client_sends_has_a_meaning() -> None:
    """Bodies, with the models in them, and parameters other than the id of the thing itself."""
    document = create_app(Settings()).openapi()
    models = document["components"]["schemas"]
    operations = [each for methods in document["paths"].values() for each in methods.values()]
    found = set(re.findall(r"schemas/(\w+)", json.dumps([each.get("requestBody", {}) for each in operations])))
    while True:
        inner = set(re.findall(r"schemas/(\w+)", json.dumps([models[name] for name in found]))) | found
        if inner == found:
            break
        found = inner
    fields = [(name, field, each) for name in found for field, each in models[name].get("properties", {}).items()]
    fields += [
        (operation["operationId"], each["name"], {"description": each.get("description"), **each["schema"]})
        for operation in operations
        for each in operation.get("parameters", [])
        if each["in"] != "path"
    ]
    assert len(fields) > 100
    mute = [(name, field) for name, field, each in fields if not meaning(each) and "const" not in each]
    assert mute == []


def test_every_code_of_a_dataset_is_told() -> None:
    calls = (
        call.args[0].value
        for package in ("api", "db", "worker")
        for path in (ROOT / package).rglob("*.py")
        for call in ast.walk(ast.parse(path.read_text()))
        if isinstance(call, ast.Call) and ast.unparse(call.func).endswith("InvalidDataset")
        if call.args and isinstance(call.args[0], ast.Constant)
    )
    assert {f"`{code}`" for code in calls} == set(api_reference.code_of(InvalidDataset).split(", "))


def test_a_secret_is_not_shown() -> None:
    """Neither its default nor that of a setting that is not printed anywhere else."""
    page = (references.FOLDER / "settings.md").read_text()
    secret = [name for name, field in Settings.model_fields.items() if field.repr is False]
    assert {"database_url", "redis_url", "api_key"} <= set(secret)
    for name in secret:
        row = next(line for line in page.splitlines() if f"`NIGHTMILL_{name.upper()}`" in line)
        assert row.split(" | ")[2] == "empty"
