"""Settings that were changed after a tenant was given its folders do not let others into these."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from api.app import create_app
from db import tenants
from db.errors import InvalidTenant
from db.session import connect, migrate, session_factory
from db.settings import Settings
from tests.api.conftest import MemoryQueue


@pytest.fixture
def roots(api_settings: Settings, tmp_path: Path) -> Iterator[Path]:
    """The folder that those of acme lie in: a disk, and a bucket's prefix."""
    folder = tmp_path / "roots"
    (folder / "acme").mkdir(parents=True)
    database = connect(api_settings.database)
    migrate(database)
    with session_factory(database).begin() as session:
        given = tenants.Changes({"roots": [folder / "acme", "s3://shared/acme"]})
        tenants.create(session, api_settings, "acme", given)
    yield folder
    database.dispose()


def start(settings: Settings, **changes: object) -> None:
    app = create_app(settings.model_copy(update={"auth": True, **changes}), MemoryQueue())
    with TestClient(app) as http:
        assert http.get("/healthz").status_code == 200


@pytest.mark.parametrize("wrong", ["", "acme", "acme/inner", "link", "s3://shared", "home"])
def test_a_service_does_not_start_with_a_setting_that_reaches_into_a_tenants_folder(
    api_settings: Settings, roots: Path, wrong: str
) -> None:
    (roots / "link").symlink_to(roots / "acme")
    setting = "NIGHTMILL_HOME" if wrong == "home" else "NIGHTMILL_DATA_ROOTS"
    place = wrong if wrong.startswith("s3:") else roots / wrong
    changes = {"home": roots / "acme" / "home"} if wrong == "home" else {"data_roots": (roots.parent / "data", place)}
    with pytest.raises(InvalidTenant, match=f"of tenant 'acme', and .*, of {setting}, lie one inside the other"):
        start(api_settings, **changes)


def test_it_starts_beside_them_and_without_keys(api_settings: Settings, roots: Path) -> None:
    start(api_settings, data_roots=(roots / "acme2", "s3://shared/acme2"))
    start(api_settings, data_roots=(roots,), auth=False)  # everybody is the operator
