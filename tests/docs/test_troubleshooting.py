"""The messages in docs/operations.md are those that the code prints, letter by letter."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

import pytest

from tests.docs.pages import ROOT, text

TROUBLE = text("operations.md").partition("## Troubleshooting")[2]
PRINTED = [
    row.partition(" | ")[0]
    for table in TROUBLE.split("| what is printed | ")[1:]
    for row in re.findall(r"^\| (.*)$", table.partition("\n\n")[0], re.MULTILINE)
]


def written() -> Iterator[str]:
    """Every text in the sources, with … for what is filled in."""
    for package in ("api", "worker", "engine", "db"):
        for path in sorted((ROOT / package).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.JoinedStr):
                    yield "".join(part.value if isinstance(part, ast.Constant) else "…" for part in node.values)
                elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                    yield node.value


@pytest.fixture(scope="module")
def sources() -> list[str]:
    return list(written())


def test_every_message_is_printed_somewhere(sources: list[str]) -> None:
    assert len(PRINTED) > 20
    told = [re.match(r"``(.+?) ?``|`([^`]+)`", row) for row in PRINTED]
    assert all(told), PRINTED
    texts = [(match[1] or match[2]).strip() for match in told if match]
    assert [each for each in texts if not any(each in source for source in sources)] == []
