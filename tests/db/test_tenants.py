"""Tenants: names, folders that never overlap, quotas."""

from __future__ import annotations

from pathlib import Path

import pytest

from db import tenants, uris
from db.accounts import DEFAULT
from db.errors import DatasetRefused, InvalidTenant, TenantNotFound
from db.settings import Settings
from tests.db.ledger import Sessions


def create(sessions: Sessions, settings: Settings, name: str, *roots: Path | str) -> None:
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
    absent = ("is neither the absolute path of a folder nor s3://", [Path("b"), place / "none"])
    cases: list[tuple[str, list[Path]]] = [inside, default, home, absent]
    for message, roots in cases:
        for root in roots:
            with pytest.raises(InvalidTenant, match=message) as caught:
                create(sessions, settings, "bolt", root)
            assert caught.value.field == "roots"
    create(sessions, settings, "bolt", place / "b")
    with sessions.begin() as session:
        changes = tenants.Changes({"roots": [place / "a" / "inner"]})
        tenants.change(session, settings, "acme", changes)  # Its own folders may be cut anew.
        assert [tenant.name for tenant in tenants.listing(session)] == ["acme", "bolt", "default"]


def test_prefixes_of_buckets_do_not_lie_one_inside_the_other_either(sessions: Sessions, settings: Settings) -> None:
    settings = settings.model_copy(update={"data_roots": ("s3://house/own",)})
    create(sessions, settings, "acme", "s3://shared/acme/", "s3://acme-alone")
    with sessions.begin() as session:
        assert tenants.get(session, "acme").roots == ["s3://shared/acme", "s3://acme-alone"]
        roots = tenants.folders(session, settings, "acme").roots
    assert str(uris.locate("s3://shared/acme/in.parquet", roots)) == "s3://shared/acme/in.parquet"
    for foreign in ("s3://shared/acme2/in.parquet", "s3://shared/bolt", "s3://house/own/in.parquet"):
        with pytest.raises(DatasetRefused, match="outside the data roots"):
            uris.locate(foreign, roots)
    overlap = "lie one inside the other"
    cases = {
        "s3://shared": overlap,
        "s3://shared/acme": overlap,
        "s3://shared/acme/in": overlap,
        "s3://acme-alone/x": overlap,
        "s3://house": "of tenant 'default'",
        "s3://key:secret@shared/bolt": "names credentials",
        "s3://shared/bolt?endpoint_override=evil": "query",
        "s3a://shared/bolt": "must have the form s3://bucket/key",
        "s3://shared/../acme": r"goes up by `\.\.`",
    }
    for root, message in cases.items():
        with pytest.raises(InvalidTenant, match=message) as caught:
            create(sessions, settings, "bolt", root)
        assert "secret" not in str(caught.value)
    create(sessions, settings, "bolt", "s3://shared/acme2")


def test_the_default_tenants_folders_are_those_of_the_settings(
    sessions: Sessions, settings: Settings, place: Path
) -> None:
    with sessions.begin() as session, pytest.raises(InvalidTenant, match="NIGHTMILL_DATA_ROOTS"):
        tenants.change(session, settings, DEFAULT, tenants.Changes({"roots": [place / "b"]}))
