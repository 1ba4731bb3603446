"""`nightmill simulate`: what is asked of the worker's module, and how its answer is told."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from api.cli import app
from api.cli.simulation_report import duration

runner = CliRunner()
FOUND: dict[str, Any] = {
    "model": "llama-3-70b", "device": "h100", "count": 8, "tensor_parallel": 4, "dtype": "bf16", "efficiency": 0.6,
    "rows": 100_000_000, "seconds": 3_000_000.0, "extrapolated": True, "simulated_rows": 10_240,
    "simulated_seconds": 605.0, "steady_rows_per_second": 33.34, "rows_per_second": 33.33,
    "prompt_tokens_per_second": 17_066.6, "output_tokens_per_second": 4266.7, "cached_share": 0.25,
    "refused_share": 0.0, "mean_prompt": 512.0, "mean_output": 128.0, "occupancy": 0.99, "kv_occupancy": 0.7,
    "starved": 0.0, "preemptions": 0, "shares": {"compute": 0.78, "links": 0.219, "host": 0.001},
    "full_rate_seconds": 1_800_000.0, "bound": "compute", "device_hours": 6666.7, "cost": 16_666.7,
    "weight_bytes": 141_100_000_000.0, "kv_bytes_per_token": 327_680.0, "kv_bytes_per_sequence": 209_715_200.0,
    "cache_tokens": 432_000, "sequences_that_fit": 675, "max_sequences": 512, "token_budget": 8192, "step_error": None,
}  # fmt: skip
HERE = FOUND | {
    "device": "here", "count": 1, "tensor_parallel": 1, "efficiency": None, "extrapolated": False, "cost": None,
    "refused_share": 0.125, "step_error": 0.08, "seconds": 75.0,
}  # fmt: skip


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NIGHTMILL_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("NIGHTMILL_ENGINE_FACTORY", "any:thing")
    monkeypatch.setenv("NIGHTMILL_MODEL", "a-model")
    monkeypatch.setenv("COLUMNS", "200")


def child(monkeypatch: pytest.MonkeyPatch, program: str) -> None:
    monkeypatch.setattr("api.cli.simulate.COMMAND", (sys.executable, "-c", program))


def answering(monkeypatch: pytest.MonkeyPatch, found: dict[str, Any], wanted: list[str]) -> None:
    told = f"import sys; assert sys.argv[1:] == {wanted}, sys.argv; print({json.dumps(found)!r})"
    child(monkeypatch, told)


def test_options_go_to_the_worker_and_the_answer_comes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    options = ["--rows=100000000", "--model=llama-3-70b", "--device=h100", "--count=8", "--tensor-parallel=4"]
    rest = [
        "--prompt-tokens=50:300,90:800",
        "--output-tokens=128",
        "--shared-tokens=0",
        "--efficiency=0.6",
        "--price=2.5",
    ]
    answering(monkeypatch, FOUND, [*options, *rest, "--no-prefix-caching"])
    result = runner.invoke(app, ["simulate", *options, *rest, "--no-prefix-caching"])
    assert result.stdout.splitlines() == [
        "100,000,000 rows of llama-3-70b (bf16) on 8 x h100, 4 to a model: 34 d 17 h, 33.33 rows/s, 17,067 prompt and "
        "4,267 output tokens/s",
        "at 60% of the roofline, which is a guess and not measured; at all of it: 20 d 20 h",
        "simulated: 10,240 rows on one engine, 10 min 5 s; the rest at the rate of their middle, 33.34 rows/s on all",
        "cost: 16,666.70 for 6,666.7 device-hours",
        "memory: weights 141.10 GB; keys and values 320.0 KiB a token, 200.0 MiB a row; 675 such rows fit, 512 run at "
        "most, 99% of these places are taken",
        "prefix cache: 25% of prompt tokens; time: compute 78%, links 22%; binds: compute",
    ]
    found = runner.invoke(app, ["simulate", *options, *rest, "--no-prefix-caching", "--json"])
    assert json.loads(found.stdout) == FOUND


def test_this_machine_and_the_settings_model_are_asked_of_first(monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = ["--rows=1000000", "--model=a-model", "--device=here", "--count=1", "--tensor-parallel=1"]
    rest = ["--prompt-tokens=512", "--output-tokens=128", "--shared-tokens=0", "--efficiency=0.6"]
    answering(monkeypatch, HERE, [*wanted, *rest])
    text = runner.invoke(app, ["simulate"]).stdout
    assert "on 1 x here: 1 min 15 s," in text
    assert "from steps measured just now; the prices fitted to them are 8% off, in the mean" in text
    assert "12.5% of rows are too long for the model or the cache, and would fail" in text
    assert "guess" not in text
    assert "simulated:" not in text
    assert "cost" not in text


COURSE: dict[str, Any] = {
    **{name: FOUND[name] for name in ("model", "device", "count", "tensor_parallel", "dtype", "efficiency")},
    "step_error": None, "device_hours": 38.1, "cost": 95.27, "workers": 2, "threads": 4, "seconds": 17_100.0,
    "rows_per_second": 596.1, "contested_seconds": 398.0, "utilisation": [1.0, 0.9], "tail_seconds": 519.0,
    "jobs": [
        {"name": "night", "tenant": "acme", "rows": 10_000_000, "priority": 0, "at": 0.0, "began": 0.5,
         "ended": 17_100.0, "rows_per_second": 584.8},
    ],
    "tenants": {"acme": {"share": 0.85, "equal": 0.5}, "beta": {"share": 0.15, "equal": 0.5}},
}  # fmt: skip


def test_several_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = ["--jobs=jobs.json", "--model=m", "--device=h100", "--count=8", "--tensor-parallel=4"]
    rest = ["--prompt-tokens=512", "--output-tokens=128", "--shared-tokens=0", "--efficiency=0.6"]
    answering(monkeypatch, COURSE, [*wanted, *rest])
    text = runner.invoke(app, ["simulate", *wanted]).stdout.splitlines()
    cells = [[cell.strip() for cell in line.split("│")[1:-1]] for line in text if "│" in line]
    assert cells == [
        ["night", "acme", "10,000,000", "0.0 s", "0.5 s", "4 h 45 min", "584.80"],
        ["acme", "85%", "50%"],
        ["beta", "15%", "50%"],
    ]
    assert text[-5:] == [
        "llama-3-70b (bf16) on 8 x h100, 4 to a model, 2 workers of 4 threads: 4 h 45 min, 596.10 rows/s",
        "at 60% of the roofline, which is a guess and not measured",
        "cost: 95.27 for 38.1 device-hours",
        "the shares are of the 6 min 38 s in which several tenants had open jobs",
        "workers busy 95% of the time, the least 90%; the first had no more to do 8 min 39 s before the end",
    ]
    assert json.loads(runner.invoke(app, ["simulate", *wanted, "--json"]).stdout) == COURSE
    answering(monkeypatch, {**COURSE, "contested_seconds": 0.0, "cost": None}, [*wanted, *rest])
    alone = runner.invoke(app, ["simulate", *wanted]).stdout
    assert "beta" not in alone
    assert "cost" not in alone
    refused = runner.invoke(app, ["simulate", *wanted, "--rows=5"])
    assert (refused.exit_code, refused.stderr) == (2, "error: --rows: the jobs of --jobs have their own\n")


@pytest.mark.parametrize(("status", "exit_code"), [(2, 2), (4, 4), (1, 4)])
def test_what_the_worker_refuses_is_one_message(monkeypatch: pytest.MonkeyPatch, status: int, exit_code: int) -> None:
    child(monkeypatch, f"import sys; print('warning\\ndevice=1: has no profile', file=sys.stderr); sys.exit({status})")
    result = runner.invoke(app, ["simulate", "--device=tpu"])
    assert (result.exit_code, result.stdout, result.stderr) == (exit_code, "", "error: device=1: has no profile\n")


def test_a_worker_that_dies_without_a_word_is_told_by_its_status(monkeypatch: pytest.MonkeyPatch) -> None:
    child(monkeypatch, "import sys; sys.exit(3)")
    assert runner.invoke(app, ["simulate", "--device=h100"]).stderr == "error: exit status 3\n"


@pytest.mark.parametrize("option", ["--rows=0", "--count=0", "--efficiency=1.5", "--shared-tokens=-1", "--price=-1"])
def test_options_out_of_range_are_refused_at_once(monkeypatch: pytest.MonkeyPatch, option: str) -> None:
    child(monkeypatch, "raise SystemExit('was called')")
    result = runner.invoke(app, ["simulate", option])
    assert result.exit_code == 2
    assert option.partition("=")[0] in result.stderr


def test_durations() -> None:
    assert [duration(seconds) for seconds in (0.04, 12.34, 59.99, 245, 3600, 172_799, 180_000, 1e8)] == [
        "0.0 s", "12.3 s", "60.0 s", "4 min 5 s", "1 h 0 min", "47 h 59 min", "2 d 2 h", "1,157 d 9 h",
    ]  # fmt: skip
