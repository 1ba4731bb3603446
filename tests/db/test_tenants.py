"""Tenants: names, folders that never overlap, quotas."""

from __future__ import annotations

from pathlib import Path

import pytest

from db import tenants
from db.accounts import DEFAULT
from db.errors import InvalidTenant, TenantNotFound
from db.settings import Settings
from tests.db.ledger import Sessions


def create(sessions: Sessions, settings: Settings, name: str, *roots: Path) -> None:
    with sessions.begin() as session:
        tenants.create(session, settings, name, tenants.Changes({"roots": roots}))


@pytest.fixture
def place(settings: Settings, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder outside the settings' roots, with a, a/inner and b."""
    folder = tmp_path_factory.mktemp("roots")
    for name in ("a/inner", "b"):
        (folder / name).mkdir(parents=True)
    return folder


def test_a_tenant_has_a_folder_of_its_own_and_those_it_was_given(
    sessions: Sessions, settings: Settings, place: Path
) -> None:
    create(sessions, settings, "acme", place / "a")
    own = settings.home / "tenants" / "acme"
    with sessions.begin() as session:
        found = tenants.folders(session, settings, "acme")
        assert found.roots == (own / "data", own / "uploads", place / "a")
        assert (found.data, found.uploads, found.counts_tokens) == (own / "data", own / "uploads", False)
        assert tenants.folders(session, settings, DEFAULT).roots == settings.roots
        with pytest.raises(TenantNotFound, match="'nobody'"):
            tenants.folders(session, settings, "nobody")


def test_folders_of_two_tenants_do_not_lie_one_inside_the_other(
    sessions: Sessions, settings: Settings, place: Path, tmp_path: Path
) -> None:
    create(sessions, settings, "acme", place / "a")
    (place / "link").symlink_to(place / "a")
    inside = ("of tenant 'acme', lie one inside the other", [place / "a", place / "a" / "inner", place, place / "link"])
    default = ("of tenant 'default', lie one inside the other", [tmp_path, settings.home / "data"])
    (settings.home / "data").mkdir(parents=True)
    (settings.home / "models").mkdir()
    home = ("lie one inside the other", [settings.home / "models"])
    absent = ("is not the absolute path of a folder", [Path("b"), place / "none"])
    for message, roots in (inside, default, home, absent):
        for root in roots:
            with pytest.raises(InvalidTenant, match=message) as caught:
                create(sessions, settings, "bolt", root)
            assert caught.value.field == "roots"
    create(sessions, settings, "bolt", place / "b")
    with sessions.begin() as session:
        changes = tenants.Changes({"roots": [place / "a" / "inner"]})
        tenants.change(session, settings, "acme", changes)  # Its own folders may be cut anew.
        assert [tenant.name for tenant in tenants.listing(session)] == ["acme", "bolt", "default"]


def test_the_default_tenants_folders_are_those_of_the_settings(
    sessions: Sessions, settings: Settings, place: Path
) -> None:
    with sessions.begin() as session, pytest.raises(InvalidTenant, match="NIGHTMILL_DATA_ROOTS"):
        tenants.change(session, settings, DEFAULT, tenants.Changes({"roots": [place / "b"]}))
