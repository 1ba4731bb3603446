"""The benchmarks' own arithmetic, and the picture they draw."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from engine import EngineStats, FinishReason, Output
from engine.models.config import ModelConfig
from tests.bench.ceiling import needed, operations
from tests.bench.chart import draw, medians


def record(rates: dict[str, list[float]]) -> dict[str, Any]:
    """A results file with w1 runs of one row each."""
    runs = [
        {"contender": name, "workload": "w1", "rows": 1, "tokens": 1, "seconds": 1 / rate}
        for name, each in rates.items()
        for rate in each
    ]
    return {"date": "2026-11-29 20:33", "machine": {"processors": 2, "kind": "any"}, "runs": runs}


def test_a_ceiling_counts_matrices_attention_and_the_head() -> None:
    config = cast(
        ModelConfig,
        SimpleNamespace(
            num_layers=2, hidden_size=4, num_heads=2, num_kv_heads=1, head_dim=2, intermediate_size=8, vocab_size=10
        ),
    )
    before, after = (cast(EngineStats, SimpleNamespace(computed_tokens=n)) for n in (100, 103))
    output = Output("a", (1,), FinishReason.LENGTH, num_prompt_tokens=4, num_cached_tokens=2, num_output_tokens=1)
    matrices = 3 * 2 * 4 * ((2 * 2 + 2 * 1) * 2 + 3 * 8)  # tokens x layers x hidden x columns
    attention = 2 * 2 * 2 * 2 * (3 + 4 + 5)  # products x layers x heads x head_dim x positions seen
    assert operations(config, before, after, [output]) == 2 * (matrices + 1 * 4 * 10 + attention)


def test_what_a_bar_asks_for_is_a_multiple_of_the_other_engine_s_median(tmp_path: Path) -> None:
    path = tmp_path / "cpu.json"
    path.write_text(json.dumps(record({"openvino-int8": [3.0, 4.0, 8.0], "transformers-fp32": [1.0]})))
    assert needed(path) == {("nightmill-int8", "w1"): ("2.5 x openvino-int8", pytest.approx(10.0))}
    assert needed(None) == {}


def test_the_picture_has_every_engine_and_does_not_change_with_the_day(tmp_path: Path) -> None:
    found = record({"vllm-fp32": [2.0, 2.0, 6.0], "nightmill-int8": [9.0]})
    assert {name: pytest.approx(rate) for name, rate in medians(found)["w1"].items()} == {
        "nightmill-int8": 9.0,
        "vllm-fp32": 2.0,
    }
    draw(found, tmp_path / "one.svg")
    draw(found, tmp_path / "two.svg")
    text = (tmp_path / "one.svg").read_text()
    assert text == (tmp_path / "two.svg").read_text()
    for wanted in ("nightmill-int8", "vllm-fp32", "w1: labels"):
        assert wanted in text


def test_no_benchmark_is_named_like_a_module_of_the_library() -> None:
    """Other engines' Python runs contenders.py with this folder first in its path."""
    assert not {path.stem for path in Path(__file__).parent.glob("*.py")} & sys.stdlib_module_names
