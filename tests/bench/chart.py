"""Draws a run of bench.py: rows per second of each engine on each workload -> docs/throughput.svg.

python -m tests.bench.chart [RESULTS.json]     the newest of tests/bench/results if none is named
"""

from __future__ import annotations

import json
import statistics
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
PICTURE = ROOT / "docs/throughput.svg"
OURS = "nightmill"
COLOURS = {True: "#b5541c", False: "#8a97a6"}


def newest() -> Path:
    found = sorted((ROOT / "tests/bench/results").glob("cpu-*.json"))
    if not found:
        raise SystemExit("no results yet: run `make bench` first")
    return found[-1]


def medians(record: dict[str, Any]) -> dict[str, dict[str, float]]:
    """Rows per second by workload and engine, the fastest first."""
    rates: dict[str, dict[str, list[float]]] = {}
    for run in record["runs"]:
        rates.setdefault(run["workload"], {}).setdefault(run["contender"], []).append(run["rows"] / run["seconds"])
    return {
        workload: dict(sorted(((name, statistics.median(each)) for name, each in found.items()), key=lambda r: -r[1]))
        for workload, found in rates.items()
    }


def draw(record: dict[str, Any], path: Path) -> None:
    import matplotlib
    from matplotlib.figure import Figure

    matplotlib.rcParams["svg.hashsalt"] = "nightmill"  # the same figures give the same file
    found = medians(record)
    figure = Figure(figsize=(9, 2.8))
    titles = {"w1": "w1: labels", "w2": "w2: summaries", "w3": "w3: extraction"}
    for axes, (workload, rates) in zip(figure.subplots(1, len(found), squeeze=False)[0], found.items(), strict=True):
        names = list(rates)
        bars = axes.barh(names, list(rates.values()), color=[COLOURS[name.startswith(OURS)] for name in names])
        axes.bar_label(bars, fmt="%.3g", padding=3, fontsize=8)
        axes.set_title(titles.get(workload, workload), fontsize=10, loc="left")
        axes.invert_yaxis()
        axes.margins(x=0.18)
        axes.tick_params(labelsize=8)
        axes.spines[["top", "right"]].set_visible(False)
    machine = record["machine"]
    figure.suptitle(
        f"Rows per second on {machine['processors']} processors ({machine['kind']}), {record['date']}", fontsize=10
    )
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})
    path.write_text("\n".join(line.rstrip() for line in path.read_text().splitlines()) + "\n")


def main() -> int:
    path = Path(sys.argv[1]) if len(sys.argv) > 1 else newest()
    draw(json.loads(path.read_text()), PICTURE)
    print(f"{PICTURE} from {path.name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
