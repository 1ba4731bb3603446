"""`python -m tests.browser.pictures` makes the pictures of docs/dashboard.md, in light and in dark."""

from __future__ import annotations

import io
import tempfile
import time
from pathlib import Path

from PIL import Image
from playwright.sync_api import sync_playwright

from tests.browser.house import CHROMIUM_OPTIONS, REPOSITORY, chromium, furnish, service

PICTURES = REPOSITORY / "docs" / "dashboard"
SIZE = {"width": 1180, "height": 760}


def save(picture: bytes, path: Path) -> None:
    """With a palette, which these pages need no more than: a quarter of the size."""
    Image.open(io.BytesIO(picture)).convert("RGB").quantize(96).save(path, optimize=True)


def main() -> None:
    PICTURES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, service(Path(folder)) as url, sync_playwright() as play:
        ids = furnish(url, Path(folder))
        time.sleep(25)  # a few points of throughput
        browser = play.chromium.launch(executable_path=chromium(), args=CHROMIUM_OPTIONS)
        pages = {
            "jobs": "/", "job": f"/jobs/{ids['live']}", "schedule": "/schedules/tickets", "submit": "/submit",
            "plan": f"/plans/{ids['plan']}",
        }  # fmt: skip
        for scheme in ("light", "dark"):
            context = browser.new_context(viewport=SIZE, color_scheme=scheme)  # type: ignore[arg-type]
            page = context.new_page()
            for name, path in pages.items():
                page.goto(url + path)
                page.wait_for_timeout(600)
                save(page.screenshot(), PICTURES / f"{name}-{scheme}.png")
            context.close()
        browser.close()


if __name__ == "__main__":
    main()
