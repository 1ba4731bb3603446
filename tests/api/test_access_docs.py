"""docs/access.md names every command, route, role, quota and setting that it is about, and no other."""

from __future__ import annotations

import re
from pathlib import Path

from api.access import router
from api.cli import access
from db.accounts import Role
from db.settings import Settings

TEXT = (Path(__file__).resolve().parents[2] / "docs" / "access.md").read_text()


def test_every_command_is_told() -> None:
    for name, app in (("keys", access.keys_app), ("tenants", access.tenants_app)):
        commands = [command.name for command in app.registered_commands]
        told = TEXT[TEXT.index(f"nightmill {name}") :]
        assert [command for command in commands if f"{command}" not in told] == []
    assert set(re.findall(r"nightmill (\w+)", TEXT)) == {"keys", "tenants", "audit", "up"}


def test_every_route_is_told() -> None:
    told = set(re.findall(r"`(GET|POST|PATCH) (/v1/[^`]+)`", TEXT))
    assert told == {(method, route.path) for route in router.routes for method in route.methods}  # type: ignore[attr-defined]


def test_every_role_and_setting_is_told() -> None:
    assert re.findall(r"^\| `(\w+)` \|", TEXT, re.MULTILINE) == [role.value for role in Role]
    settings = {name.removeprefix("NIGHTMILL_").lower() for name in re.findall(r"NIGHTMILL_[A-Z_]+", TEXT)}
    assert settings == {"auth", "api_key", "submissions_per_minute", "max_upload_bytes"}
    assert settings <= set(Settings.model_fields)
    assert f"times a minute ({Settings.model_fields['submissions_per_minute'].default})" in TEXT
