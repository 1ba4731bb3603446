"""A schedule fires at its minute in a running service; the examples of docs/schedules.md, run as they stand there."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from api.client import Client
from api.embedded.lock import running
from tests.docs.pages import examples
from tests.e2e.conftest import CommandLine, eventually, write


@pytest.fixture
def url(nightmill: CommandLine, tmp_path: Path) -> str:
    nightmill.environment = {**nightmill.environment, "NIGHTMILL_DATA_ROOTS": json.dumps([str(tmp_path / "data")])}
    process = nightmill.start("up", "--port", "0")
    eventually(lambda: running(nightmill.home) is not None or process.poll() is not None, "the service is there")
    found = running(nightmill.home)
    assert found is not None, process.communicate()[1]
    return found.url


def minute_schedule(folder: Path) -> dict[str, object]:
    job = {
        "input": str(folder / "in"),
        "output": str(folder / "out" / "{{ ts_nodash }}"),
        "recipe": {"kind": "generate", "template": "{{ text }}"},
        "only_new": {"key": "id"},
    }
    return {"name": "minutely", "cron": "* * * * *", "job": job}


@pytest.mark.slow  # a minute goes by until it fires
def test_it_fires_at_its_minute_and_the_second_run_computes_the_added_rows(
    nightmill: CommandLine, url: str, tmp_path: Path
) -> None:
    folder = tmp_path / "data"
    (folder / "in").mkdir()
    pq.write_table(pa.table({"id": [1, 2, 3], "text": ["a", "b", "c"]}), folder / "in" / "1.parquet")
    with Client(url) as client:
        schedule = client.schedules.create(minute_schedule(folder))
        assert schedule.next_at is not None
        assert 0 < schedule.next_at.timestamp() - time.time() <= 60.5

        def completed() -> int:
            return sum(run.status == "completed" for run in client.schedules.runs("minutely"))

        eventually(lambda: completed() == 1, "the first run", 90)
        pq.write_table(pa.table({"id": [4, 5], "text": ["d", "e"]}), folder / "in" / "2.parquet")
        client.schedules.run("minutely")  # The second night.
        eventually(lambda: completed() >= 2, "the second run", 90)
        client.schedules.pause("minutely")
        done = [run for run in client.schedules.runs("minutely") if run.status == "completed"]
        second, first = done[-2:]  # a fire time that came while a run went on is listed as skipped
    assert first.fire_at == schedule.next_at
    assert (first.rows_input, first.rows_skipped, first.rows_succeeded) == (3, 0, 3)
    assert (second.rows_input, second.rows_skipped, second.rows_succeeded) == (5, 3, 2)
    print(f"{second.rows_succeeded} rows computed, {second.rows_skipped} skipped")
    dated = folder / "out" / f"{first.fire_at:%Y%m%dT%H%M%SZ}"
    assert pq.read_table(dated / "part-00000.parquet")["output"].to_pylist() == ["A", "B", "C"]
    assert (dated / "_SUCCESS").exists()


@pytest.mark.slow
@pytest.mark.parametrize("nightmill", ["embedded"], indirect=True)
def test_the_examples_of_the_document(nightmill: CommandLine, url: str, tmp_path: Path) -> None:
    folder = tmp_path / "data"
    yesterday = datetime.now(UTC).date() - timedelta(days=1)
    for name in ("mails", "tickets", "archive"):
        (folder / name).mkdir()
    for day in range(9):
        write(folder / "mails" / f"{yesterday - timedelta(days=day)}.parquet", 3)
    write(folder / "tickets" / f"{date(2026, 3, 1)}.parquet", 3)
    write(folder / "archive" / "all.parquet", 12)
    blocks = examples("schedules.md")
    assert {block.language for block in blocks} == {"sh", "python"}
    for block in blocks:
        text = block.code.replace("http://127.0.0.1:8642", url).replace("/data/", f"{folder}/")
        if block.language == "python":
            exec(compile(text, block.page, "exec"), {})
            continue
        commands = re.split(r"\n(?=nightmill |curl )", text.strip())
        for command in commands:
            done = shell(nightmill, command)
            assert done.returncode == 0, (command, done.stdout, done.stderr)
    with Client(url) as client:
        assert sorted(schedule.name for schedule in client.schedules.list()) == ["archive", "mails", "tickets"]
        eventually(
            lambda: {run.status for run in client.schedules.runs("archive")} == {"completed_with_errors"}, "archive ran"
        )
        eventually(
            lambda: [run.status for run in client.schedules.runs("mails")] == ["completed"] * 7, "the backfill is done"
        )
        tickets = {run.logical_date: run for run in client.schedules.runs("tickets")}
    assert len(tickets) == 7
    assert "does not exist" in str(tickets["2026-03-07"].reason)


def shell(nightmill: CommandLine, command: str) -> subprocess.CompletedProcess[str]:
    """A command of the document; `nightmill` is the one under test."""
    return subprocess.run(
        ["bash", "-c", f"nightmill() {{ python -P -c 'from api.cli import app; app()' \"$@\"; }}; {command}"],
        env={**nightmill.environment, "PATH": f"{Path(sys.executable).parent}:{nightmill.environment['PATH']}"},
        cwd=nightmill.folder,
        capture_output=True,
        text=True,
        timeout=120,
    )
