"""`nightmill bench` over a grid of settings: what is tried, and how it is shown."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from rich.console import Console
from typer.testing import CliRunner

from api.cli.grid import Tried, advice, environment, frontier, plot, points, table
from api.cli.main import app
from api.cli.options import OptionError

runner = CliRunner()


def measured(rate: float, latency: float) -> dict[str, Any]:
    return {
        "rows": 100, "refused": 0, "seconds": 100 / rate,
        "prompt_tokens": 1000, "cached_tokens": 500, "output_tokens": 200,
        "occupancy": 3.25, "latency": {"p50": latency, "p90": latency, "p99": 2 * latency},
    }  # fmt: skip


def test_points_are_all_combinations() -> None:
    found = points(["max_sequences=4, 8,8", "engine_dtype=fp32"])
    assert found == [{"max_sequences": "4", "dtype": "fp32"}, {"max_sequences": "8", "dtype": "fp32"}]
    assert environment(found[1]) == {"NIGHTMILL_ENGINE_MAX_SEQUENCES": "8", "NIGHTMILL_ENGINE_DTYPE": "fp32"}


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (["sequences=4"], "there is no setting 'sequences'; there are .*max_sequences"),
        (["factory=os:abort"], "there is no setting 'factory'"),
        (["home=/etc"], "there is no setting 'home'"),
        (["max_sequences"], "give values, as in max_sequences=VALUE,VALUE"),
        (["max_sequences=,"], "give values"),
        (["max_sequences=4", "max_sequences=8"], "is there twice"),
        (["max_sequences=0"], "--grid max_sequences=0: .*greater than or equal to 1"),
        (["dtype=fp3,fp32"], "--grid dtype=fp3: "),
        ([f"max_sequences={','.join(map(str, range(1, 66)))}"], "65 combinations; at most 64"),
    ],
)
def test_what_cannot_be_tried(given: list[str], says: str) -> None:
    with pytest.raises(OptionError, match=says):
        points(given)


TRIED = [
    Tried({"max_sequences": "4"}, measured(2.0, 1.0)),
    Tried({"max_sequences": "16"}, measured(4.0, 3.0)),
    Tried({"max_sequences": "64"}, measured(3.0, 6.0)),
    Tried({"max_sequences": "999"}, None, "no memory"),
]


def test_the_best_of_them() -> None:
    assert frontier(TRIED) == {0, 1}
    assert advice(TRIED, TRIED[0]) == (
        "most rows: NIGHTMILL_ENGINE_MAX_SEQUENCES=16 (4.00 rows/s, 2.00 times the settings as they are)"
    )
    assert advice(TRIED[3:], TRIED[3]) == "none of these settings could be measured"


def test_refused_rows_are_said() -> None:
    some = Tried({"max_sequences": "4"}, measured(2.0, 1.0) | {"refused": 12, "refusal": "too long"})
    shown = Console(file=io.StringIO(), width=120)
    shown.print(table([some, TRIED[1]]))
    assert isinstance(shown.file, io.StringIO)
    lines = [line.split() for line in shown.file.getvalue().splitlines()]
    assert [line[-1] for line in lines if line[:1] in (["max_sequences"], ["1"], ["2"])] == ["refused", "12", "0"]
    assert advice([some], some).endswith("(2.00 rows/s, 1.00 times the settings as they are, 12 rows refused)")


def test_the_plot_has_each_at_its_place() -> None:
    lines = plot(TRIED)
    places = {
        mark: (line.index(mark), row) for row, line in enumerate(lines[1:16]) for mark in "123" if mark in line[5:]
    }
    zero = lines[1].index("┤") + 1
    assert places == {"1": (zero + 11, 7), "2": (zero + 32, 0), "3": (zero + 64, 4)}  # 64 wide, 14 high
    assert lines[1].startswith("4.0 ┤")
    assert lines[8].startswith("2.0 ┤")
    assert lines[-2].split() == ["0", "3.00", "6.00"]
    assert plot(TRIED[:1]) == []


PROGRAM = """
import json, os, sys
sequences = int(os.environ.get("NIGHTMILL_ENGINE_MAX_SEQUENCES", 1))
if sequences > 100:
    sys.exit("no memory for so many")
spec = json.load(sys.stdin) if "--job" in sys.argv else None
found = json.loads(sys.argv[1]) | {"rows": sequences, "seconds": 2.0, "spec": spec}
print(json.dumps(found))
"""


def test_the_command(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("NIGHTMILL_ENGINE_FACTORY", "any:thing")
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setattr("api.cli.bench.COMMAND", (sys.executable, "-c", PROGRAM, json.dumps(measured(1.0, 0.5))))
    pq.write_table(pa.table({"text": ["a"]}), tmp_path / "in.parquet")
    arguments = ["bench", str(tmp_path / "in.parquet"), "--labels", "x,y", "--model", "m"]
    grid = ["--grid", "max_sequences=2,4,500"]
    result = runner.invoke(app, [*arguments, *grid])
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    assert next(line.split() for line in lines if line.split()[:1] == ["1"]) == [
        "1", "2", "1.00", "600", "0.50", "1.00", "3.2", "50%",
    ]  # fmt: skip
    assert any("no memory for so many" in line for line in lines)
    assert lines[-1].startswith("most rows: NIGHTMILL_ENGINE_MAX_SEQUENCES=4 (2.00 rows/s, 4.00 times")
    first, *_ = json.loads(runner.invoke(app, [*arguments, *grid, "--json"]).stdout)
    assert first["point"] == {"max_sequences": "2"}
    assert first["found"]["spec"]["input"] == str(tmp_path / "in.parquet")
    assert first["found"]["spec"]["recipe"]["labels"] == ["x", "y"]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["missing.parquet", "--labels", "x,y"], "missing.parquet: no such file or folder"),
        (["--max-tokens", "0"], "--max-tokens 0: must be at least 1"),
        (["--grid", "dtype=fp3"], "--grid dtype=fp3: "),
    ],
)
def test_the_commands_errors(arguments: list[str], says: str) -> None:
    result = runner.invoke(app, ["bench", *arguments])
    assert result.exit_code == 2
    assert says in result.stderr
