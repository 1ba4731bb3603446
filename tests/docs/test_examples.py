"""The examples of pages that no other test is about, run in the order of the page, each page in a folder of its own.

The model is one of a few lines: what is shown is that every command, call and option does what the page says. What a
real model answers is in docs/outputs.md.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.api.openai.rig import SETTINGS, service
from tests.docs.pages import Block, examples, execute

SERVED = ("quickstart.md", "migrating.md", "../README.md")  # with a running service
ALONE = ("access.md", "operations.md", "simulation.md")  # with a home of their own, where nothing runs
FAKE = {f"NIGHTMILL_{name}": SETTINGS[name] for name in ("MODEL", "ENGINE_FACTORY", "SWEEP_SECONDS")}
ADDRESS = "http://127.0.0.1:8642"

pytestmark = pytest.mark.slow  # a service, and some thirty processes


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with service(OPENAI_MODELS=json.dumps({"smollm2-135m": "fake"})) as address:
        yield address


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """What the pages take for granted: the command in .venv/bin, and tables."""
    command = tmp_path / ".venv" / "bin" / "nightmill"
    command.parent.mkdir(parents=True)
    command.write_text(f"#!/bin/sh\nexec {sys.executable} -P -c 'from api.cli import app; app()' \"$@\"\n")
    command.chmod(0o755)
    texts = pa.array(["The soup was cold.", "Best night of the year!", "We waited an hour."])
    counts = pa.table({"prompt": [200, 300, 900], "answer": [20, 30, 90]})
    pq.write_table(counts, tmp_path / "tokens.parquet")
    (tmp_path / "data" / "acme").mkdir(parents=True)
    for name, column in (("reviews", "text"), ("papers", "abstract"), ("rows", "text")):
        pq.write_table(pa.table({"id": [1, 2, 3], column: texts}), tmp_path / f"{name}.parquet")
    return tmp_path


def run(page: str, folder: Path, environment: dict[str, str], url: str = ADDRESS) -> list[tuple[Block, str]]:
    """Each block with what it printed. The address and the folder /data of the pages are the test's own."""
    printed = []
    for block in examples(page):
        code = block.code.replace(ADDRESS, url).replace("/data/", f"{folder}/data/")
        printed.append((block, execute(replace(block, code=code), folder, environment)))
    return printed


@pytest.mark.parametrize("page", SERVED)
def test_with_a_service(page: str, folder: Path, url: str) -> None:
    printed = run(page, folder, {**FAKE, "NIGHTMILL_URL": url}, url)
    assert printed
    if page == "quickstart.md":
        told = "".join(text for _, text in printed)
        assert "completed 3 of 3" in told
        assert told.count("None\n") == 3, "three labelled rows without an error"
        assert len(list((folder / "summaries").glob("part-*.parquet"))) == 1
    if page == "migrating.md":
        assert len((folder / "answers.jsonl").read_text().splitlines()) == 2
        assert pq.read_table(folder / "answers").num_rows == 3
        assert pq.read_table(folder / "answers-of-nightmill").column_names[:2] == ["id", "output"]


@pytest.mark.parametrize("page", ALONE)
def test_alone(page: str, folder: Path) -> None:
    environment = {**FAKE, "NIGHTMILL_HOME": str(folder / "home")}
    printed = run(page, folder, environment)
    assert printed
    if page == "access.md":
        assert "revoked" in execute(Block(page, "sh", "nightmill keys list\n", None), folder, environment)
    if page == "operations.md":
        assert (folder / "ledger-backup.db").stat().st_size > 0
        jobs = (
            'from db.settings import Settings\nimport sqlite3\nprint(sqlite3.connect(Settings().home / "nightmill.db")'
        )
        code = f'{jobs}.execute("SELECT count(*) FROM jobs").fetchone()[0])\n'
        assert execute(Block(page, "python", code, None), folder, environment) == "1\n", "the job that was run before"
