"""What a model's name tells whoever gives it: nothing of the folders of this machine but those of its own spelling."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from db.errors import ModelMissing
from db.model_files import check_place, find, is_path
from db.settings import Settings


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory: has the folders work/org/name, work/plain and, beside it, other."""
    for name in ("work/org/name", "work/plain", "work/a/b/c", "other"):
        (tmp_path / name).mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "work")
    return tmp_path / "work"


def test_a_name_that_goes_up_is_a_path_whatever_is_there(settings: Settings) -> None:
    for name in ("org/../../other", "org/../../none", "org/name/..", "none/.."):
        assert is_path(name)
    told = []
    for name in ("other", "none"):
        with pytest.raises(ModelMissing, match="lies outside") as caught:
            check_place(f"org/../../{name}", settings, ())
        told.append(str(caught.value).replace(name, "?"))
    assert told[0] == told[1]


def test_only_names_like_those_of_the_hub_are_looked_for() -> None:
    names = ["org/name", "org/none", "plain", "a/b/c", "plain/", "/org", "x.gguf"]
    assert [name for name in names if is_path(name)] == ["org/name", "/org", "x.gguf"]


def test_a_folder_without_permission_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    def stat(path: object, **more: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "stat", stat)
    assert not is_path("org/name")


def test_the_operators_own_model_may_be_a_folder_by_any_name(here: Path, tmp_path: Path) -> None:
    (here / "plain" / "config.json").write_text("{}")
    assert find("plain", Settings(home=tmp_path / "home", model="plain")) == here / "plain"
    with pytest.raises(ModelMissing, match="neither a known name"):
        find("plain", Settings(home=tmp_path / "home"))
