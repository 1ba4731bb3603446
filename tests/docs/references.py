"""`python -m tests.docs.references` writes docs/reference from the code. `make references` and `make docs` run it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tests.docs import api_reference, commands_reference, metrics_reference, settings_reference

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "reference"
NOTE = "<!-- Written by `make references`; change the code's own words instead. -->\n\n"
PAGES: dict[str, Callable[[], str]] = {
    "api.md": api_reference.render,
    "commands.md": commands_reference.render,
    "metrics.md": metrics_reference.render,
    "settings.md": settings_reference.render,
}


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    for name, render in PAGES.items():
        (FOLDER / name).write_text(NOTE + render())


if __name__ == "__main__":
    main()
