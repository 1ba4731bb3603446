"""`nightmill up`: a lasting service, what it survives, and that it leaves nothing behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from api.client import Client
from api.embedded.lock import running
from tests.e2e.conftest import CommandLine, children, eventually, gone, named, write

SHOUT = ("--recipe", "generate", "--template", "{{ text }}")


@pytest.fixture
def service(nightmill: CommandLine) -> subprocess.Popen[str]:
    process = nightmill.start("up", "--port", "0")
    eventually(
        lambda: running(nightmill.home) is not None or process.poll() is not None, "the service announces itself"
    )
    assert process.poll() is None, process.communicate()[1]
    return process


def test_run_uses_the_service(
    nightmill: CommandLine, service: subprocess.Popen[str], table: Path, tmp_path: Path
) -> None:
    """A job goes in by upload and comes out by download; what fails is explained."""
    done = nightmill("run", table, *SHOUT, "--output", tmp_path / "out")  # The table lies outside the service's roots.
    assert done.returncode == 0, done.stderr
    assert pq.read_table(tmp_path / "out" / "part-00000.parquet").num_rows == 200

    options = ("--labels", "text,other", "--calibration", "none", "--keep-columns", "id", "--output-prefix", "m_")
    done = nightmill("run", table, *options, "--max-rows", "20", "--strict", "--output", tmp_path / "labels")
    assert done.returncode == 3, done.stderr
    rows = pq.read_table(tmp_path / "labels" / "part-00000.parquet").to_pylist()
    assert list(rows[0])[:2] == ["id", "m_output"]
    assert [row["m_label"] for row in rows] == [None if i == 7 else "text" for i in range(20)]
    assert rows[7]["m_error"]["code"] == "null_text"

    done = nightmill("run", table, *SHOUT, "--output", tmp_path / "none", "--model", "no-such-model")
    assert done.returncode == 1
    assert "failed: 0 of 200 rows" in done.stderr
    assert "model_missing: model 'no-such-model'" in done.stderr
    done = nightmill("run", table, "--recipe", "summarize", "--column", "body", "--output", tmp_path / "none")
    assert (done.returncode, "no column 'body'" in done.stderr) == (2, True), done.stderr


def test_jobs_from_the_command_line(
    nightmill: CommandLine, service: subprocess.Popen[str], table: Path, tmp_path: Path
) -> None:
    submitted = nightmill("submit", table, *SHOUT, "--key", "k")
    job_id = submitted.stdout.strip()
    assert nightmill("submit", table, *SHOUT, "--key", "k").returncode == 2  # Another upload is another job.
    assert nightmill("watch", job_id).returncode == 0
    shown = json.loads(nightmill("status", job_id, "--json").stdout)
    assert (shown["id"], shown["status"], shown["counts"]["failed"]) == (job_id, "completed_with_errors", 1)
    assert job_id in nightmill("status").stdout
    assert "part-00000.parquet" in nightmill("results", job_id).stdout
    fetched = nightmill("results", job_id, "--output", tmp_path / "fetched")
    assert fetched.returncode == 0
    assert (tmp_path / "fetched" / "_SUCCESS").exists()
    retried = nightmill("retry", job_id)
    assert nightmill("watch", retried.stdout.strip()).returncode == 1  # The row without a text has none now either.
    again = json.loads(nightmill("status", retried.stdout.strip(), "--json").stdout)
    assert (again["retry_of"], again["counts"]["total"], again["error"]["code"]) == (job_id, 1, "no_row_succeeded")
    for command in ("pause", "resume"):
        refused = nightmill(command, job_id)
        assert (refused.returncode, f"it cannot be {command}d" in refused.stderr) == (2, True), refused.stderr
    cancelled = nightmill("cancel", job_id)
    assert (cancelled.returncode, "can no longer be cancelled" in cancelled.stderr) == (2, True)


@pytest.mark.parametrize("nightmill", ["embedded"], indirect=True)
def test_the_end(nightmill: CommandLine, service: subprocess.Popen[str]) -> None:
    """A second `up` names the first; SIGTERM ends it all in a bounded time."""
    found = running(nightmill.home)
    assert found is not None
    assert (found.pid, found.lasting) == (service.pid, True)
    second = nightmill("up")
    assert second.returncode == 4
    assert f"in use by process {service.pid}, at {found.url}" in second.stderr
    started = children(service)
    service.send_signal(signal.SIGTERM)
    _, err = service.communicate(timeout=40)
    assert service.returncode == 0, err
    assert gone(started)
    assert running(nightmill.home) is None
    assert nightmill("status").returncode == 2


def test_children_are_replaced(nightmill: CommandLine, service: subprocess.Popen[str], tmp_path: Path) -> None:
    """Worker and broker are killed in the middle of a job; every row still comes out once, in order."""
    table = write(tmp_path / "data" / "table.parquet", 1000)
    found = running(nightmill.home)
    assert found is not None
    with Client(found.url) as client:
        uri = client.upload(table).uri
        recipe = {"kind": "generate", "template": "{{ text }}"}
        job = client.submit({"input": uri, "recipe": recipe, "model": "fake:slow", "shard_rows": 100})
        eventually(lambda: client.get(job.id).counts.shards_done >= 1, "a first shard")
        victims = [named(children(service), "-m worker")]
        if "REDIS_URL" not in nightmill.environment:
            victims.append(named(children(service), "broker.sock"))
        for victim in victims:
            victim.kill()
        ended = client.wait(job.id)
        assert ended.status.value == "completed_with_errors"
        rows = [row for batch in client.batches(job.id, columns=["id", "output"]) for row in batch.to_pylist()]
    assert rows == [{"id": i, "output": None if i == 7 else f"TEXT {i}"} for i in range(1000)]
    assert not {victim.pid for victim in victims} & {child.pid for child in children(service)}


@pytest.mark.parametrize("nightmill", ["embedded"], indirect=True)
def test_a_killed_parent_takes_its_children_along(nightmill: CommandLine, service: subprocess.Popen[str]) -> None:
    started = children(service)
    assert started
    os.kill(service.pid, signal.SIGKILL)
    eventually(lambda: gone(started), "no child is left", 30)
    assert running(nightmill.home) is None
