"""One service and one browser for all of these tests; a context of its own for each."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.browser.house import CHROMIUM_OPTIONS, chromium, furnish, service

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page


@dataclass(frozen=True)
class House:
    url: str
    folder: Path
    ids: dict[str, str]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    path = chromium()
    if path is None:
        pytest.skip("no Chromium here: install it (apt-get install chromium), or set NIGHTMILL_TEST_CHROMIUM")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as play:
        started = play.chromium.launch(executable_path=path, args=CHROMIUM_OPTIONS)
        yield started
        started.close()


@pytest.fixture(scope="module")
def house(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    folder = tmp_path_factory.mktemp("house")
    with service(folder) as url:
        yield House(url, folder, furnish(url, folder))


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    """Anything that a page's scripts complain about, or that its policy refuses, fails the test."""
    context = browser.new_context(viewport={"width": 1180, "height": 800})
    context.set_default_timeout(60_000)
    made = context.new_page()
    complaints: list[str] = []
    made.on("pageerror", lambda error: complaints.append(str(error)))
    made.on("console", lambda message: complaints.append(message.text) if message.type == "error" else None)
    yield made
    context.close()
    assert [text for text in complaints if "status of 4" not in text] == []
