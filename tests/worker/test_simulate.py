"""What `python -m worker.simulate` answers, and what it refuses."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from db.errors import ModelMissing
from db.settings import Settings
from engine.errors import InvalidRequest, OutOfCache
from tests.engine import tiny_models, tiny_tokenizers
from worker import simulate
from worker.lengths import lengths

FLEET = ("--model=llama-3-8b", "--device=h100", "--prompt-tokens=100", "--output-tokens=20")
GPUS = (*FLEET, "--rows=3000")


def asked(*arguments: str, settings: Settings | None = None) -> dict[str, Any]:
    """What would be printed; the last of an option given twice counts."""
    return simulate.simulated(simulate.parser().parse_args(list(arguments)), settings or Settings())


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    tiny_models.make("llama", vocab_size=512).save_pretrained(folder)
    return tiny_tokenizers.write_folder(folder, tiny_tokenizers.byte_level())


@pytest.fixture
def settings(model: Path) -> Settings:
    return Settings(data_roots=[model], engine_cache_bytes=1 << 20, engine_dtype="fp32", engine_max_sequences=8)


def column(folder: Path, values: list[Any], kind: pa.DataType) -> str:
    pq.write_table(pa.table({"x:y": pa.array(values, kind)}), folder / "rows.parquet")
    return f"{folder}/rows.parquet:x:y"


def test_gpus() -> None:
    found = asked(*GPUS, "--price=2")
    assert (found["dtype"], found["efficiency"], found["extrapolated"], found["refused_share"]) == (
        "bf16",
        0.6,
        False,
        0,
    )
    assert found["rows_per_second"] == pytest.approx(3000 / found["seconds"])
    assert found["prompt_tokens_per_second"] == pytest.approx(5 * found["output_tokens_per_second"])
    assert found["cost"] == pytest.approx(2 * found["device_hours"])
    assert found["device_hours"] == pytest.approx(found["seconds"] / 3600)
    assert found["kv_bytes_per_sequence"] == 120 * 131_072
    assert found["full_rate_seconds"] == pytest.approx(0.6 * found["seconds"], rel=0.01)
    half = asked(*GPUS, "--efficiency=0.3", "--no-prefix-caching")
    assert half["seconds"] == pytest.approx(2 * found["seconds"], rel=0.01)
    assert half["cost"] is None


def test_more_engines_share_the_rows() -> None:
    one, four = asked(*GPUS, "--rows=60000"), asked(*GPUS, "--rows=60000", "--count=4")
    assert one["seconds"] / four["seconds"] == pytest.approx(4, rel=0.02)
    large = asked(*GPUS, "--model=llama-3-70b", "--count=8", "--tensor-parallel=4", "--rows=100000000")
    assert large["extrapolated"]
    assert large["simulated_rows"] == 10_240
    assert large["rows_per_second"] * large["seconds"] == pytest.approx(100_000_000)


def test_shared_beginnings_are_found_unless_that_is_off() -> None:
    shared = asked(*GPUS, "--shared-tokens=80")
    assert shared["cached_share"] == pytest.approx(0.8, abs=0.05)
    assert asked(*GPUS, "--shared-tokens=80", "--no-prefix-caching")["cached_share"] == 0
    assert shared["seconds"] < asked(*GPUS)["seconds"]


def test_this_machine(model: Path, settings: Settings) -> None:
    found = asked(f"--model={model}", "--rows=40", "--prompt-tokens=20", "--output-tokens=4", settings=settings)
    assert (found["device"], found["dtype"], found["efficiency"]) == ("here", "fp32", None)
    assert found["max_sequences"] == 8
    assert found["kv_bytes_per_token"] == 2 * 3 * 2 * 16 * 4  # keys and values, layers, KV heads, head size, bytes
    assert found["cache_tokens"] <= (1 << 20) / found["kv_bytes_per_token"]
    assert found["rows_per_second"] == pytest.approx(40 / found["seconds"])
    assert 0 < found["step_error"] < 2
    assert found["full_rate_seconds"] == pytest.approx(found["seconds"])


def test_lengths_of_a_column_of_numbers(tmp_path: Path) -> None:
    given = column(tmp_path, [*range(1, 5001), None, 0], pa.int32())
    points = lengths(given, "prompt_tokens", "llama-3-8b", Settings()).points
    assert 2000 <= len(points) <= 3000
    assert (points[0][1], points[-1][1]) == (1, pytest.approx(5000, abs=3))
    assert points[len(points) // 2][1] == pytest.approx(2500, abs=5)


def test_lengths_of_a_column_of_texts(tmp_path: Path, model: Path, settings: Settings) -> None:
    given = column(tmp_path, ["a", "aaaaaaaaa", ""], pa.string())
    points = lengths(given, "prompt_tokens", str(model), settings).points
    assert [tokens for _, tokens in points] == sorted(tokens for _, tokens in points)
    assert points[0][1] == 1 < points[-1][1]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--device=tpu"], r"device='tpu': has no profile; known are a100, h100, h200"),
        (["--dtype=int2"], r"dtype='int2': must be one of"),
        (["--device=a100", "--dtype=fp8"], r"dtype='fp8': a100 computes no such products"),
        (["--kv-dtype=int2"], r"kv_dtype='int2'"),
        (["--count=6", "--tensor-parallel=4"], r"count=6: is no multiple of tensor_parallel=4"),
        (["--count=3", "--tensor-parallel=3"], r"tensor_parallel=3: does not divide 8 KV heads"),
        (["--tensor-parallel=0"], r"tensor_parallel=0: must be at least 1"),
        (["--device=here", "--tensor-parallel=2", "--count=2"], r"tensor_parallel=2: is simulated on GPUs alone"),
        (["--device=here", "--model=llama-3-70b"], r"device='here': of llama-3-70b only the shape is known"),
        (["--prompt-tokens=90:5,50:6"], r"prompt_tokens='90:5,50:6'"),
        (["--output-tokens=zero"], r"output_tokens='zero'"),
        (["--prompt-tokens=no.parquet"], r"prompt_tokens='no.parquet': names no column; say FILE.parquet:COLUMN"),
        (["--prompt-tokens=no.parquet:x"], r"prompt_tokens='no.parquet:x': cannot be read: .*no.parquet"),
        (["--prompt-tokens=9000"], r"no row fits"),
        (["--rows=0"], r"rows=0: must be at least 1"),
        (["--shared-tokens=-1"], r"shared=-1: must be at least 0"),
        (["--efficiency=0"], r"efficiency=0.0: must lie between 0 and 1"),
        (["--max-sequences=9000"], r"token_budget=8192: is less than max_sequences=9000"),
    ],
)
def test_what_cannot_be_is_refused_by_its_option(arguments: list[str], message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        asked(*GPUS, *arguments)


def test_weights_that_do_not_fit_are_told_with_a_way_out() -> None:
    with pytest.raises(OutOfCache, match=r"of each device, of 72\.0 that may be used: take a smaller dtype"):
        asked(*GPUS, "--model=llama-3-70b")
    assert asked(*GPUS, "--model=llama-3-70b", "--dtype=int4_weight_only")["cache_tokens"] > 0


def test_a_model_that_nobody_knows_is_told_with_those_known() -> None:
    with pytest.raises(ModelMissing, match="shapes known by name: llama-3-8b"):
        asked(*GPUS, "--model=gpt")


def test_columns_that_cannot_be_lengths_are_refused(tmp_path: Path) -> None:
    def refused(given: str, reason: str) -> None:
        with pytest.raises(InvalidRequest, match=reason) as error:
            asked(*GPUS, f"--prompt-tokens={given}")
        assert error.value.field == "prompt_tokens"

    texts = column(tmp_path, ["a"], pa.string())
    refused(texts, "has texts, and the tokenizer that counts them is not here")
    refused(texts.replace("x:y", "z"), "cannot be read: .*z")
    refused(column(tmp_path, [1.5], pa.float64()), "is a column of double, neither numbers of tokens nor texts")
    refused(column(tmp_path, [None], pa.int64()), "has no values")


def test_several_jobs(tmp_path: Path) -> None:
    file = tmp_path / "jobs.json"
    lines: list[dict[str, Any]] = [
        {"name": "a", "tenant": "x", "rows": 200_000},
        {"name": "b", "tenant": "y", "rows": 20_000, "at": 60, "prompt_tokens": 300, "shared_tokens": 200},
    ]
    file.write_text(json.dumps(lines))
    found = asked(*FLEET, f"--jobs={file}", "--count=4", "--price=2", settings=Settings(worker_threads=3))
    assert (found["workers"], found["threads"], len(found["utilisation"])) == (4, 3, 4)
    assert [(job["name"], job["rows"], job["at"]) for job in found["jobs"]] == [("a", 200_000, 0), ("b", 20_000, 60)]
    assert found["seconds"] == max(job["ended"] for job in found["jobs"])
    assert found["cost"] == pytest.approx(2 * 4 * found["seconds"] / 3600)
    assert set(found["tenants"]) == {"x", "y"}
    one = asked(*GPUS, "--rows=220000", "--count=4")
    assert found["rows_per_second"] == pytest.approx(one["rows_per_second"], rel=0.25)
    lines[1]["prompt_tokens"] = "many"
    file.write_text(json.dumps(lines))
    with pytest.raises(InvalidRequest, match="prompt_tokens='many'"):
        asked(*FLEET, f"--jobs={file}")
    with pytest.raises(InvalidRequest, match="count=5"):
        asked(*FLEET, f"--jobs={file}", "--count=5", "--tensor-parallel=2")


@pytest.mark.parametrize(("model", "status"), [("llama-3-8b", 2), ("gpt", 4)])
def test_the_command_ends_with_a_line_and_a_status(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], model: str, status: int
) -> None:
    monkeypatch.setattr(sys, "argv", ["simulate", *GPUS, f"--model={model}", "--max-sequences=9000"])
    with pytest.raises(SystemExit) as ended:
        simulate.main()
    told = capsys.readouterr()
    assert (ended.value.code, told.out, told.err.count("\n")) == (status, "", 1)


def test_the_command_prints_one_object(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["simulate", *GPUS])
    simulate.main()
    assert json.loads(capsys.readouterr().out) == asked(*GPUS)
