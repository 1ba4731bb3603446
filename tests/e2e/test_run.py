"""`nightmill run`: from a Parquet file to a Parquet file through API, broker, worker and database."""

from __future__ import annotations

import io
import json
import os
import signal
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from db.stores import S3Path
from tests import s3_server
from tests.e2e.conftest import CommandLine, children, eventually, gone, write

ADDED = ["output", "finish_reason", "error", "prompt_tokens", "cached_tokens", "output_tokens", "truncated_tokens"]
SHOUT = ("--recipe", "generate", "--template", "{{ text }}")


def read(folder: Path) -> pa.Table:
    return pa.concat_tables(pq.read_table(path) for path in sorted(folder.glob("part-*.parquet")))


def test_generate(nightmill: CommandLine, table: Path, tmp_path: Path) -> None:
    """Every row once, in order, across several shards; the row without a text says so."""
    output = tmp_path / "out"
    done = nightmill("run", table, *SHOUT, "--output", output, "--shard-rows", "64")
    assert done.returncode == 0, done.stderr
    assert sorted(path.name for path in output.iterdir()) == [
        "_SUCCESS", "_errors", "_manifest.json", *(f"part-0000{i}.parquet" for i in range(4))
    ]  # fmt: skip
    result = read(output)
    assert result.column_names == ["id", "text", *ADDED]
    rows = result.to_pylist()
    assert [row["id"] for row in rows] == list(range(200))
    assert [row["output"] for row in rows] == [None if i == 7 else f"TEXT {i}" for i in range(200)]
    assert [row["id"] for row in rows if row["error"] is not None] == [7]
    assert rows[7]["error"]["code"] == "template_error"
    manifest = json.loads((output / "_manifest.json").read_text())
    assert manifest["complete"] is True
    assert "completed_with_errors: 199 of 200 rows" in done.stderr
    assert "1 rows failed: template_error (1)" in done.stderr
    assert f"result: {output}" in done.stderr


@pytest.mark.parametrize("nightmill", ["embedded"], indirect=True)
def test_plan(nightmill: CommandLine, table: Path, tmp_path: Path) -> None:
    """Nothing is left but the plan."""
    done = nightmill("plan", table, *SHOUT, "--sample-rows", "16", "--json")
    assert done.returncode == 0, done.stderr
    plan = json.loads(done.stdout)
    rows = plan["result"]["rows"]
    assert (rows["total"], rows["sampled"], rows["causes"]) == (200, 16, {"template_error": 1})
    assert "TEXT" in plan["result"]["examples"][0]["output"]
    tokens, words = plan["result"]["prompt_tokens"], sum(len(f"text {i}") for i in range(200) if i != 7)
    assert tokens["low"] == tokens["value"] == tokens["high"] >= words  # every row was read
    assert not list(tmp_path.glob("**/part-*.parquet"))


@pytest.mark.parametrize("nightmill", ["embedded"], indirect=True)
def test_from_a_bucket_into_a_bucket(nightmill: CommandLine, table: Path, bucket: S3Path) -> None:
    nightmill.environment = {
        **nightmill.environment,
        **s3_server.KEYS,
        "NIGHTMILL_S3_ENDPOINT": bucket.service.endpoint,
    }
    s3_server.put(bucket / "data" / "in.parquet", table.read_bytes())
    done = nightmill("run", f"{bucket}/data/in.parquet", *SHOUT, "--output", f"{bucket}/results/one")
    assert done.returncode == 0, done.stderr
    assert f"result: {bucket}/results/one" in done.stderr
    assert s3_server.get(bucket / "results" / "one" / "_SUCCESS") is not None
    part = pq.read_table(io.BytesIO(s3_server.get(bucket / "results" / "one" / "part-00000.parquet")))
    assert part["output"].to_pylist() == [None if i == 7 else f"TEXT {i}" for i in range(200)]


@pytest.mark.parametrize("nightmill", ["embedded"], indirect=True)
def test_mistakes_are_explained_before_anything_starts(nightmill: CommandLine, table: Path, tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    for arguments, status, message in (
        (("nothing.parquet", *SHOUT, "--output", "out"), 2, "nothing.parquet: no such file or folder"),
        ((table, *SHOUT, "--output", "full"), 2, "the folder is not empty; name another one or empty it"),
        (("s3://b/in.parquet", *SHOUT, "--output", "out"), 2, "INPUT s3://b/in.parquet: has no bucket's name"),
        ((table, *SHOUT, "--output", "s3://k:s@host/out"), 2, "--output s3://…@host/out: names credentials"),
        ((table, *SHOUT, "--output", "gs://bucket/out"), 2, "--output gs://bucket/out: must have the form s3://"),
        ((table, "--output", "out"), 2, "--labels: the recipe label needs it"),
        ((table, *SHOUT, "--output", "out", "--url", "http://127.0.0.1:1"), 2, "no Nightmill service is ready at"),
    ):
        done = nightmill("run", *arguments)
        assert done.returncode == status, (arguments, done.stderr)
        assert message in done.stderr
        assert "Traceback" not in done.stderr
    assert not (tmp_path / "out").exists()


def test_interrupt(nightmill: CommandLine, tmp_path: Path) -> None:
    """Ctrl-C cancels the job, keeps what is finished, and leaves no process behind."""
    table = write(tmp_path / "data" / "large.parquet", 20_000)
    output = tmp_path / "out"
    process = nightmill.start("run", table, *SHOUT, "--model", "fake:slow", "--shard-rows", "50", "--output", output)
    eventually(lambda: any(output.glob("part-*.parquet")), "a first part")
    started = children(process)
    assert len(started) == (3 if "REDIS_URL" not in nightmill.environment else 2)
    os.kill(process.pid, signal.SIGINT)
    _, err = process.communicate(timeout=120)
    assert process.returncode == 130, err
    assert "cancelling; rows that are finished are kept" in err
    assert gone(started)
    assert not (output / "_SUCCESS").exists()
    assert json.loads((output / "_manifest.json").read_text())["complete"] is False
    # The part of a shard that was under way has rows that are not finished.
    kept = [row["output"] for row in read(output).to_pylist() if row["id"] != 7 and row["finish_reason"] != "cancelled"]
    assert set(kept) <= {f"TEXT {i}" for i in range(20_000)}
