"""The documentation builds as a site, strictly, and the site needs no other host to be read."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.docs.pages import ROOT, pages


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A strict build: a broken link, a missing anchor or a page that nobody links fails it."""
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return folder


def test_every_page_is_in_the_navigation(site: Path) -> None:
    def named(entries: list[object]) -> list[str]:
        found: list[str] = []
        for entry in entries:
            for value in entry.values() if isinstance(entry, dict) else [entry]:
                found += named(value) if isinstance(value, list) else [str(value)]
        return found

    listed = named(yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"])
    assert sorted(listed) == [page for page in pages() if page != "../README.md"]
    assert [page for page in listed if not (site / page).with_suffix(".html").is_file()] == []


def test_nothing_is_loaded_from_elsewhere(site: Path) -> None:
    loading = re.compile(
        r"<(?:script|img|iframe)[^>]+src=\"?(?:https?:)?//|<link[^>]+href=\"?(?:https?:)?//[^>]+stylesheet"
    )
    found = [path.name for path in site.rglob("*.html") if loading.search(path.read_text())]
    assert found == []
    styles = "".join(path.read_text() for path in site.rglob("*.css"))
    assert re.findall(r"(?:@import|url\()\s*[\"']?https?:[^)]*", styles) == []
