"""The report of the fault suite: one line per fault, over all its runs."""

from __future__ import annotations

from dataclasses import dataclass, field

from tests.faults.rig import Outcome

HEAD = "| fault | runs | rows | lost | doubled | redone | seconds to recover |\n|---|---|---|---|---|---|---|\n"

INTRODUCTION = """# Faults

Written by `make faults`: real workers on the fake model, a Redis and a PostgreSQL of the tests' own. Every row of every
output is compared with the answer that it must have. *redone*: rows that an engine computed a second time. *seconds to
recover*: from the fault until work went on, the slowest run. Leases last 1.5 s here (30 s by default), so that a death
is noticed soon.
"""


@dataclass
class Report:
    rows: dict[str, list[tuple[Outcome, float | None]]] = field(default_factory=dict)

    def add(self, fault: str, outcome: Outcome, seconds: float | None = None) -> None:
        """`seconds`: from the fault to the next finished row, or to what the fault had stopped."""
        self.rows.setdefault(fault, []).append((outcome, seconds))
        assert (outcome.lost, outcome.doubled) == (0, 0), fault

    def table(self) -> str:
        lines = []
        for fault, runs in self.rows.items():
            outcomes = [outcome for outcome, _ in runs]
            num_rows = sum(outcome.num_rows for outcome in outcomes)
            sums = [sum(getattr(outcome, name) for outcome in outcomes) for name in ("lost", "doubled", "redone")]
            slowest = max((seconds for _, seconds in runs if seconds is not None), default=None)
            shown = "" if slowest is None else f"{slowest:.1f}"
            lines.append(f"| {fault} | {len(runs)} | {num_rows:,} | {sums[0]} | {sums[1]} | {sums[2]} | {shown} |\n")
        return HEAD + "".join(lines)

    def page(self, seed: int) -> str:
        return f"{INTRODUCTION}\nSeed of the last run: {seed}.\n\n{self.table()}"
