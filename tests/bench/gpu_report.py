"""Writes what tests/bench/gpu.py found into docs/performance.md, between two marks, and a plot beside it.

python -m tests.bench.gpu_report [RESULTS.jsonl]     the newest file of tests/bench/results if none is named
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tests.bench.gpu import RESULTS, ROOT, STAGES

PAGE = ROOT / "docs" / "performance.md"
BEGIN, END = "<!-- gpu: begin, written by make bench-report -->", "<!-- gpu: end -->"
NOTHING = "Unmeasured: no GPU was at hand. `python -m tests.bench.gpu` measures on a machine that has one."
Line = dict[str, Any]


def newest(folder: Path) -> Path | None:
    """The last run on a GPU; reduced runs measure nothing."""
    found = sorted(path for path in folder.glob("gpu-*.jsonl") if path.stem != "gpu-reduced")
    return found[-1] if found else None


def section(lines: Iterable[Line]) -> str:
    """The tables of one run. A stage without an end, or with a bad one, is named."""
    by_stage: dict[str, list[Line]] = {}
    for line in lines:
        by_stage.setdefault(line["stage"], []).append(line)
    (about,) = by_stage.pop("machine")
    versions = f"torch {about['torch']}, Triton {about['triton']}, commit {about['commit']}"
    parts = [f"{about['device']}, {versions}, {about['time']}."]
    for stage in STAGES:
        found = by_stage.get(stage, [])
        ends = [line["code"] for line in found if line["what"] == "end"]
        rows = [line for line in found if line["what"] != "end"]
        if found and ends != [0]:
            parts.append(f"**{stage} did not end as it should ({ends or 'cut off'}).**")
        if rows:
            parts.append(f"### {stage}\n\n{table(rows)}")
    return "\n\n".join(parts)


def table(rows: list[Line]) -> str:
    columns = list(dict.fromkeys(key for row in rows for key in row if key != "stage"))
    head = [" | ".join(columns), " | ".join("---" for _ in columns)]
    body = [" | ".join(shown(row.get(column)) for column in columns) for row in rows]
    return "\n".join(f"| {line} |" for line in [*head, *body])


def shown(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "**no**"
    if isinstance(value, list):
        return ", ".join(shown(each) for each in value)
    if isinstance(value, float):
        return f"{value:.3g}" if abs(value) < 1000 else f"{value:,.0f}"
    return str(value)


def placed(page: str, text: str) -> str:
    """The page with `text` between the marks."""
    before, _, rest = page.partition(BEGIN)
    _, mark, after = rest.partition(END)
    if not mark:
        raise SystemExit(f"{PAGE} has no lines {BEGIN} and {END}")
    return f"{before}{BEGIN}\n\n{text}\n\n{END}{after}"


def plot(lines: list[Line], path: Path) -> None:
    """The step times of drafts by number of sequences, each relative to a step without."""
    from matplotlib.figure import Figure

    steps = {(line["sequences"], line["drafted"]): line["ms"] for line in lines if line.get("what") == "step"}
    figure = Figure(figsize=(6, 4))
    axes = figure.subplots()
    for batch in sorted({batch for batch, _ in steps}):
        drafts = sorted(drafted for other, drafted in steps if other == batch)
        times = [steps[batch, drafted] / steps[batch, 0] for drafted in drafts]
        axes.plot(drafts, times, marker="o", label=f"{batch} sequences")
    axes.set_xlabel("draft tokens verified per sequence")
    axes.set_ylabel("step time, without drafts = 1")
    axes.legend()
    figure.savefig(path, bbox_inches="tight")


def main() -> int:
    path = Path(sys.argv[1]) if len(sys.argv) > 1 else newest(RESULTS)
    text = NOTHING
    if path is not None:
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        text = section(lines)
        if any(line.get("what") == "step" for line in lines):
            plot(lines, PAGE.with_name("verify_steps.svg"))
            text += "\n\n![What verifying drafts costs](verify_steps.svg)"
    PAGE.write_text(placed(PAGE.read_text(), text))
    print(f"{PAGE}: {path or 'nothing measured yet'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
