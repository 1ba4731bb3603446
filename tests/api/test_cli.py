"""Commands that need no service, and how progress is told."""

from __future__ import annotations

import io
import json
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from rich.console import Console
from sqlalchemy import inspect
from typer.testing import CliRunner

from api.cli import app
from api.cli.demo import DemoRecipe, job_options, print_labels, print_rouge
from api.cli.follow import Meter, Pace, describe, duration, transfer
from api.cli.job_request import job_request
from api.schemas import EndView, JobView
from api.spans import span
from db.session import connect

runner = CliRunner()


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("NIGHTMILL_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.delenv("DATABASE_URL", raising=False)
    return tmp_path / "home"


NIGHT = datetime(2026, 11, 30, 23, 50, tzinfo=UTC)


def job(done: int, *, status: str = "running", failed: int = 0, tokens: int = 0, **others: Any) -> JobView:
    view = {
        "id": "job_x", "status": status, "input": "/in", "output": "/out", "model": "m", "recipe": "summarize",
        "counts": {"total": 100, "done": done, "succeeded": done - failed, "failed": failed, "shards_total": 1,
                   "shards_done": 0},
        "tokens": {"prompt": tokens, "cached": 0, "output": 0},
        "rates": {"rows_per_second": None, "tokens_per_second": None},
        "eta_seconds": None, "elapsed_seconds": None, "created_at": datetime(2026, 1, 1, tzinfo=UTC),
        "started_at": None, "finished_at": None, "error": None,
        "spec": {"input": "/in", "model": "m", "recipe": {"kind": "summarize"}},
    }  # fmt: skip
    return JobView.model_validate(view | others)


def test_version() -> None:
    result = runner.invoke(app, ["version"])
    assert (result.exit_code, result.stdout) == (0, "0.1.0\n")


def test_a_transfer_shows_its_bytes_where_there_is_a_terminal() -> None:
    shown = io.StringIO()
    with transfer("uploading x", Console(file=shown, force_terminal=True, width=100), 4_000_000) as told:
        told(1_000_000)
        told(2_000_000)
    assert "uploading x" in shown.getvalue()
    assert "3.0/4.0 MB" in shown.getvalue()
    plain = io.StringIO()
    with transfer("uploading x", Console(file=plain, width=100)) as told:
        told(1)
    assert plain.getvalue() == ""


def test_migrate(home: Path) -> None:
    result = runner.invoke(app, ["migrate"])
    assert (result.exit_code, "is up to date" in result.stderr) == (0, True)
    database = connect(f"sqlite:///{home / 'nightmill.db'}")
    assert {"jobs", "shards", "uploads", "workers"} <= set(inspect(database).get_table_names())
    database.dispose()


def test_models(monkeypatch: pytest.MonkeyPatch) -> None:
    result = runner.invoke(app, ["models", "list"])
    assert "not pulled: nightmill models pull smollm2-135m" in result.stdout
    result = runner.invoke(app, ["models", "pull", "nonsense"])
    assert result.exit_code == 4
    assert "error: model 'nonsense': neither a known name" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (["status"], 2, "no Nightmill service runs for this home; start one with `nightmill up`"),
        (["cancel", "job_x", "--url", "http://127.0.0.1:1"], 4, "no answer from http://127.0.0.1:1"),
    ],
)
def test_without_a_service(arguments: list[str], status: int, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("api.transport.time.sleep", lambda seconds: None)
    result = runner.invoke(app, arguments)
    assert (result.exit_code, message in result.stderr) == (status, True), result.output


def test_a_wrong_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NIGHTMILL_PORT", "many")
    result = runner.invoke(app, ["up"])
    assert (result.exit_code, "NIGHTMILL_PORT: Input should be a valid integer" in result.stderr) == (2, True)


def test_every_command_is_documented() -> None:
    result = runner.invoke(app, ["run", "--help"])
    assert "3 rows failed" in " ".join(result.stdout.split())
    commands = {command.name or command.callback.__name__ for command in app.registered_commands if command.callback}
    assert {"up", "run", "demo", "api", "worker", "migrate", "version"} == commands


def test_pace() -> None:
    """Of the last seconds, not of the whole job; polls without news do not slow it."""
    meter = Meter()
    assert meter.pace(job(0), 0.0) == Pace(None, None)
    meter.pace(job(10, tokens=100), 10.0)
    assert meter.pace(job(10, tokens=100), 12.0) == Pace(1.0, 10.0)
    assert meter.pace(job(30, tokens=500), 20.0) == Pace(1.5, 25.0)
    assert meter.pace(job(50, tokens=900), 30.0) == Pace(2.0, 40.0)


def test_the_line() -> None:
    ends = {"at": NIGHT, "earliest": NIGHT, "latest": NIGHT + timedelta(seconds=20)}
    line = describe(job(50, failed=2, eta_seconds=25.0, ends=ends), Pace(2.04, 1234.5))
    local = span(EndView(**ends))
    assert line == f"50/100 rows · 2.0 rows/s · 1,234 tokens/s · 0:25 left, ends {local} · 2 failed"
    assert describe(job(0), Pace(None, None)) == "0/100 rows"
    assert [duration(seconds) for seconds in (0.4, 65, 7389)] == ["0:00", "1:05", "2:03:09"]


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(20, "23:50:00–23:50:20"), (500, "23:50–23:58"), (1200, "2026-11-30 23:50–2026-12-01 00:10")],
)
def test_a_span_is_as_exact_as_it_is_narrow(seconds: int, shown: str) -> None:
    assert span(EndView(at=NIGHT, earliest=NIGHT, latest=NIGHT + timedelta(seconds=seconds)), UTC) == shown


def test_the_demo_describes_valid_jobs() -> None:
    label = job_request(job_options(DemoRecipe.LABEL, 300), "/in", None)
    assert (label.max_rows, label.output_prefix) == (300, "model_")
    summarize = job_request(job_options(DemoRecipe.SUMMARIZE, 20), "/in", None)
    assert (summarize.recipe.kind, summarize.on_long) == ("summarize", "truncate_middle")


def test_the_demos_bar() -> None:
    table = pa.table(
        {"label": ["a", "b"], "model_label": ["a", None], "model_confidence": pa.array([0.9, None], pa.float64())}
    )
    shown = Console(file=io.StringIO(), width=100)
    assert print_labels(table, 0.5, shown)
    assert not print_labels(table, 0.6, shown)
    assert isinstance(shown.file, io.StringIO)
    text = shown.file.getvalue()
    assert "accuracy 0.500 (always the most frequent label: 0.500)" in text
    assert "is below the bar of 0.600" in text
    assert "model says nothing" in text


def test_the_demos_rouge() -> None:
    shown = Console(file=io.StringIO(), width=100)
    print_rouge(pa.table({"text": ["one two"], "summary": ["one two"], "model_output": ["three"]}), shown)
    assert isinstance(shown.file, io.StringIO)
    lines = shown.file.getvalue().splitlines()
    assert [line.split("│")[2:5] for line in lines if "model" in line] == [[" 0.000   ", " 0.000   ", " 0.000   "]]
    assert any("first 120 words" in line and line.count("1.000") == 3 for line in lines)


MEASURED: dict[str, Any] = {
    "model": "m", "dtype": "int8", "sequences": 64, "load_seconds": 1.0, "host_share": 0.031, "rows": 10,
    "refused": 0, "refusal": None,
    "prompt_tokens": 100, "cached_tokens": 20, "output_tokens": 50, "steps": 5, "seconds": 2.0,
    "parts": {"model": 1.938, "sample": 0.062}, "preemptions": 0, "occupancy": 30.0,
    "latency": {"p50": 0.5, "p90": 0.8, "p99": 1.0},
}  # fmt: skip


def test_bench(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NIGHTMILL_ENGINE_FACTORY", "any:thing")
    wanted = ["--rows", "7", "--max-tokens", "64"]
    program = f"import sys; assert sys.argv[1:] == {wanted}; print({json.dumps(MEASURED)!r})"
    monkeypatch.setattr("api.cli.bench.COMMAND", (sys.executable, "-c", program))
    text = runner.invoke(app, ["bench", "--rows", "7", "--profile"]).stdout.splitlines()
    assert text[0] == "m int8, 64 sequences: 5.00 rows/s, 75 tokens/s (25 written/s), " + (
        "a row takes 0.50 s (p99 1.00), loaded in 1.0 s"
    )
    assert [line.split() for line in text if "sample" in line] == [["│", "sample", "│", "12.400", "│", "3.10%", "│"]]
    assert text[-1] == "host share of wall time: 3.1%"
    assert json.loads(runner.invoke(app, ["bench", "--rows", "7", "--json"]).stdout) == MEASURED


def test_bench_of_rows_that_are_refused_or_take_no_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NIGHTMILL_ENGINE_FACTORY", "any:thing")
    found = MEASURED | {"steps": 0, "refused": 3, "refusal": "prompt [a] is too long"}
    monkeypatch.setattr("api.cli.bench.COMMAND", (sys.executable, "-c", f"print({json.dumps(found)!r})"))
    text = runner.invoke(app, ["bench", "--profile"]).stdout.splitlines()
    assert text[0].endswith("loaded in 1.0 s, 3 rows refused: prompt [a] is too long")
    assert any("sample" in line for line in text)


def test_bench_without_an_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NIGHTMILL_ENGINE_FACTORY", "any:thing")
    monkeypatch.setattr("api.cli.bench.COMMAND", (sys.executable, "-c", "raise SystemExit('it is broken')"))
    result = runner.invoke(app, ["bench"])
    assert (result.exit_code, result.stderr) == (4, "error: it is broken\n")
