"""The report of the fault suite: what each test saw, and the table over several runs.

A test takes the fixture `report` and calls `report.add(what was done, outcome, seconds, number)`; nothing else is
needed for a line in docs/faults.md.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tests.faults.catalogue import ELSEWHERE, FAULTS
from tests.faults.rig import Outcome

HEAD = (
    "| no. | fault | what was done | runs | rows | lost | doubled | redone | seconds to recover |\n"
    "|---|---|---|---|---|---|---|---|---|\n"
)

INTRODUCTION = """# Faults

Written by `make faults`: real workers on the fake model, a Redis and a PostgreSQL of the tests' own. Every row of every
output is compared with the answer that an undisturbed run gives. *redone*: rows that an engine computed a second time.
*seconds to recover*: from the fault until work went on, or what the line says; the slowest run. Leases last 1.5 s here
(30 s by default), so that a death is noticed soon. Rows and counts are sums over the runs. Every run has a seed of its
own, printed, which says where faults fall and in which order the tests come.
"""

IN_BUCKETS = """The same tests with every input and output in a bucket of SeaweedFS, which they start."""


@dataclass
class Report:
    """One run. `lines`: by what was done, each with its fault's number and what was seen."""

    lines: dict[str, dict[str, Any]] = field(default_factory=dict)

    def add(self, what: str, outcome: Outcome, seconds: float | None = None, *, number: int = 0) -> None:
        """`seconds`: from the fault to the next finished row, or as `what` says. `number`: in catalogue.FAULTS; 0: none
        of them."""
        assert number == 0 or number in FAULTS, number
        assert what not in self.lines, f"two tests have the line {what!r}"
        self.lines[what] = {"number": number, "seconds": seconds, **asdict(outcome)}
        assert (outcome.lost, outcome.doubled) == (0, 0), what

    def save(self, path: Path, **more: object) -> None:
        path.write_text(json.dumps({"lines": self.lines, **more}, indent=1))


def table(runs: Sequence[dict[str, Any]]) -> str:
    """The lines of several runs, merged, in the order of their faults' numbers; those without a number at the end."""
    merged: dict[str, list[dict[str, Any]]] = {}
    for run in runs:
        for what, line in run["lines"].items():
            merged.setdefault(what, []).append(line)
    order = sorted(merged, key=lambda what: (merged[what][0]["number"] or len(FAULTS) + 1, what))
    return HEAD + "".join(_row(what, merged[what]) for what in order)


def _row(what: str, lines: list[dict[str, Any]]) -> str:
    number = lines[0]["number"]
    slowest = max((line["seconds"] for line in lines if line["seconds"] is not None), default=None)
    sums = {name: sum(line[name] for line in lines) for name in ("num_rows", "lost", "doubled", "redone")}
    cells = [number or "", FAULTS.get(number, ""), what, len(lines), *(f"{count:,}" for count in sums.values())]
    return "| " + " | ".join(map(str, [*cells, "" if slowest is None else f"{slowest:.1f}"])) + " |\n"


def untested(runs: Sequence[dict[str, Any]]) -> list[int]:
    """The faults that no line is about, and no test elsewhere."""
    seen = {line["number"] for run in runs for line in run["lines"].values()}
    return sorted(FAULTS.keys() - seen - {int(number) for run in runs for number in run["elsewhere"]})


def page(runs: Sequence[dict[str, Any]]) -> str:
    """The whole document."""
    on_disks, in_buckets = ([run for run in runs if run["store"] == store] for store in ("disk", "s3"))
    missing = [f"{number} ({FAULTS[number]})" for number in untested(runs)]
    parts = [
        INTRODUCTION,
        *(["## On disks", *section(on_disks)] if on_disks else []),
        _elsewhere(on_disks) if on_disks else "",
        f"Faults of the list without a line: {', '.join(missing)}." if missing else "",
        *(["## In buckets", IN_BUCKETS, *section(in_buckets)] if in_buckets else []),
    ]
    return "\n\n".join(part.strip("\n") for part in parts if part) + "\n"


def section(runs: Sequence[dict[str, Any]]) -> list[str]:
    skipped = sorted({f"- `{name}`: {reason}" for run in runs for name, reason in run["skipped"].items()})
    failed = Counter(name for run in runs for name in run["failed"])
    not_run = Counter(name for run in runs for name in run["not_run"])
    times_up = ", ".join(f"`{name}` ({count} of {len(runs)} runs)" for name, count in sorted(not_run.items()))
    broken = ", ".join(f"`{name}` ({count} of {len(runs)} runs)" for name, count in sorted(failed.items()))
    verdict = "" if failed or not_run else " No test failed."
    return [
        "\n".join(map(_conditions, runs)) + f"\n\n{len(runs)} run{'s' * (len(runs) > 1)}.{verdict}",
        table(runs),
        "Skipped:\n\n" + "\n".join(skipped) if skipped else "",
        f"**Not run**, as the time was up: {times_up}." if not_run else "",
        f"**Failed**: {broken}." if failed else "",
    ]


def _conditions(run: dict[str, Any]) -> str:
    return (
        f"- {run['day']}, seed {run['seed']}: {run['processors']} processors, load {run['load']:.1f} over the last 15 "
        f"minutes, {run['seconds'] / 60:.0f} minutes."
    )


def _elsewhere(runs: Sequence[dict[str, Any]]) -> str:
    """The faults whose tests lie in other folders: which, and how many passed in the run that saw the fewest."""
    rows = [
        f"| {number} | {FAULTS[number]} | {' '.join(f'`{file}`' for file in files)} | {len(runs)} "
        f"| {min(run['elsewhere'].get(str(number), 0) for run in runs)} |"
        for number, files in ELSEWHERE.items()
    ]
    return "\n".join(["| no. | fault | tests | runs | passed in each |", "|---|---|---|---|---|", *rows])
