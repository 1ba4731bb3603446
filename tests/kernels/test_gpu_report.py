"""The report of the GPU script: what a run found, in docs/performance.md between its marks."""

from __future__ import annotations

from pathlib import Path

from tests.bench import gpu_report
from tests.bench.gpu import STAGES
from tests.bench.gpu_report import BEGIN, END, newest, placed, plot, section

MACHINE = {"stage": "machine", "device": "H", "torch": "2", "triton": "3", "commit": "abc", "time": "now"}
STEPS = [
    {"stage": "verify_table", "what": "step", "sequences": batch, "drafted": drafted, "ms": 1.5 * batch + drafted}
    for batch in (8, 64)
    for drafted in (0, 4)
]


def test_a_run_becomes_tables():
    lines = [
        MACHINE,
        {"stage": "bandwidth", "what": "decode", "TB/s": 3.2345},
        {"stage": "bandwidth", "what": "prompt", "TFLOP/s": 12345.6, "passed": False},
        {"stage": "bandwidth", "what": "end", "code": 0, "seconds": 3.0},
        {"stage": "oracle", "what": "drafts", "ratio": 2.0},
        {"stage": "oracle", "what": "end", "code": -1, "seconds": 30.0},
    ]
    assert section(lines) == (
        "H, torch 2, Triton 3, commit abc, now.\n\n"
        "### bandwidth\n\n"
        "| what | TB/s | TFLOP/s | passed |\n"
        "| --- | --- | --- | --- |\n"
        "| decode | 3.23 |  |  |\n"
        "| prompt |  | 12,346 | **no** |\n\n"
        "**oracle did not end as it should ([-1]).**\n\n"
        "### oracle\n\n"
        "| what | ratio |\n"
        "| --- | --- |\n"
        "| drafts | 2 |"
    )


def test_the_page_keeps_what_is_outside_the_marks():
    page = f"before\n{BEGIN}\nold\n{END}\nafter\n"
    assert placed(page, "new") == f"before\n{BEGIN}\n\nnew\n\n{END}\nafter\n"
    assert BEGIN in gpu_report.PAGE.read_text()


def test_reduced_runs_are_no_results(tmp_path: Path):
    for name in ("gpu-20260101-000000", "gpu-20260102-000000", "gpu-reduced", "other"):
        (tmp_path / f"{name}.jsonl").touch()
    assert newest(tmp_path) == tmp_path / "gpu-20260102-000000.jsonl"
    assert newest(tmp_path / "nothing") is None


def test_the_plot_names_every_curve(tmp_path: Path):
    plot(STEPS, tmp_path / "plot.svg")
    assert "8 sequences" in (text := (tmp_path / "plot.svg").read_text())
    assert "64 sequences" in text


def test_the_stages_take_nine_minutes():
    assert sum(STAGES.values()) == 540
