"""The pages of the documentation and the fenced blocks in them.

A block that a reader could run is run by a test. One that cannot be is marked, on the line before its fence:

    <!-- not run: the reason -->

`examples(page)` gives the rest, in the page's order; tests/docs/test_blocks.py sees to it that a test asks for them.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
RUNNABLE = ("sh", "bash", "console", "python", "http")
PARSED = ("json", "yaml", "toml")
FENCE = re.compile(
    r"^(?:<!-- not run: (?P<reason>[^\n]+?) -->\n)?^```(?P<language>\w*)\n(?P<code>.*?)^```$", re.MULTILINE | re.DOTALL
)


@dataclass(frozen=True, slots=True)
class Block:
    """`reason`: why it is not run; None where it is."""

    page: str
    language: str
    code: str
    reason: str | None


def pages() -> list[str]:
    """Every page, relative to docs/, and the README as `../README.md`."""
    return [*sorted(str(path.relative_to(DOCS)) for path in DOCS.rglob("*.md")), "../README.md"]


def text(page: str) -> str:
    return (DOCS / page).read_text()


def blocks(page: str) -> list[Block]:
    found = FENCE.finditer(text(page))
    return [Block(page, match["language"], match["code"], match["reason"]) for match in found]


def examples(page: str) -> list[Block]:
    """What a test has to run."""
    return [block for block in blocks(page) if block.language in RUNNABLE and block.reason is None]


def execute(block: Block, folder: Path, environment: dict[str, str]) -> str:
    """Run a block in a folder, `nightmill` being this repository's, and give what it printed; it must not fail."""
    shell = f"set -euo pipefail\nnightmill() {{ {sys.executable} -P -c 'from api.cli import app; app()' \"$@\"; }}\n"
    command = [sys.executable, "-W", "ignore", "-c", block.code]
    if block.language in ("sh", "bash"):
        command = ["bash", "-c", shell + block.code]
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "LANG", "TMPDIR") if name in os.environ}
    done = subprocess.run(
        command,
        env={**kept, "PYTHONPATH": str(ROOT), "COLUMNS": "200", **environment},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, f"{block.page}\n{block.code}\n{done.stderr}\n{done.stdout}"
    return done.stdout
