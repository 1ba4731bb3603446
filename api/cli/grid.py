"""The engine's settings over a grid: what `nightmill bench --grid` measures, and how it is shown."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from pydantic import ValidationError
from rich.box import SIMPLE_HEAD
from rich.table import Table

from api.cli.options import OptionError
from db.settings import Settings

Point: TypeAlias = Mapping[str, str]  # settings of the engine by name, without the prefix
PREFIX = "engine_"
NAMES = sorted(
    name.removeprefix(PREFIX)
    for name in Settings.model_fields
    if name.startswith(PREFIX) and name != "engine_factory"  # of tests
)
MOST_POINTS = 64
WIDTH, HEIGHT = 64, 14  # of the plot, in characters
MARKS = "123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ*+#"


@dataclass(frozen=True, slots=True)
class Tried:
    """A point of the grid, and what worker.bench measured there or why it could not."""

    point: Point
    found: dict[str, Any] | None
    error: str | None = None

    @property
    def refused(self) -> int:
        """Rows that the engine would not take."""
        return 0 if self.found is None else self.found["refused"]

    @property
    def rate(self) -> float:
        """Rows per second; 0: not measured."""
        return 0.0 if self.found is None else self.found["rows"] / self.found["seconds"]


def points(given: Sequence[str]) -> list[Point]:
    """Every combination of `NAME=VALUE,VALUE,…`. Raises OptionError."""
    axes: dict[str, list[str]] = {}
    for text in given:
        name, _, values = text.partition("=")
        name = name.strip().removeprefix(PREFIX)
        listed = [value.strip() for value in values.split(",") if value.strip()]
        if name not in NAMES:
            raise OptionError(f"--grid {text}: there is no setting {name!r}; there are {', '.join(NAMES)}")
        if not listed:
            raise OptionError(f"--grid {text}: give values, as in {name}=VALUE,VALUE")
        if name in axes:
            raise OptionError(f"--grid {text}: {name} is there twice; list all of its values in one")
        axes[name] = list(dict.fromkeys(listed))
    found: list[Point] = [dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values())]
    if len(found) > MOST_POINTS:
        raise OptionError(f"--grid: {len(found)} combinations; at most {MOST_POINTS} are tried in one run")
    for point in found:
        try:
            Settings(**{PREFIX + name: value for name, value in point.items()})  # type: ignore[arg-type]
        except ValidationError as error:
            first = error.errors()[0]
            name = str(first["loc"][0]).removeprefix(PREFIX) if first["loc"] else ", ".join(point)
            raise OptionError(f"--grid {name}={point.get(name, '')}: {first['msg']}") from error
    return found


def environment(point: Point) -> dict[str, str]:
    """The variables that set it."""
    return {f"NIGHTMILL_{PREFIX}{name}".upper(): value for name, value in point.items()}


def table(tried: Sequence[Tried]) -> Table:
    """A line for every point; what no other point beats in both rate and latency is bold. p50 and p99: seconds of a
    row in the engine; batch: mean sequences in a step; cached: share of prompt tokens; refused, where there are any:
    rows, which the others do not count."""
    names = list(tried[0].point)
    shown = Table("", *names, "rows/s", "tokens/s", "p50 s", "p99 s", "batch", "cached", box=SIMPLE_HEAD)
    refused = any(each.refused for each in tried)
    if refused:
        shown.add_column("refused")
    best = frontier(tried)
    for place, each in enumerate(tried):
        values = [MARKS[place], *each.point.values()]
        if each.found is None:
            shown.add_row(*values, f"[red]{each.error}[/]")
            continue
        found = each.found
        tokens = (found["prompt_tokens"] + found["output_tokens"]) / found["seconds"]
        latency = found["latency"]
        shown.add_row(
            *values,
            f"{each.rate:,.2f}",
            f"{tokens:,.0f}",
            f"{latency['p50']:.2f}",
            f"{latency['p99']:.2f}",
            f"{found['occupancy']:.1f}",
            f"{found['cached_tokens'] / max(found['prompt_tokens'], 1):.0%}",
            *([f"{each.refused:,}"] if refused else []),
            style="bold" if place in best else None,
        )
    return shown


def frontier(tried: Sequence[Tried]) -> set[int]:
    """The places of the points that no other one beats: as many rows per second, and as short a median latency."""
    measured = [(place, each.rate, each.found["latency"]["p50"]) for place, each in enumerate(tried) if each.found]
    return {
        place
        for place, rate, latency in measured
        if not any(
            other >= rate and shorter <= latency and (other, shorter) != (rate, latency)
            for _, other, shorter in measured
        )
    }


def plot(tried: Sequence[Tried]) -> list[str]:
    """Rows per second over the median latency of a row, each point as its mark in the table; both axes begin at 0."""
    measured = [
        (MARKS[place], each.found["latency"]["p50"], each.rate) for place, each in enumerate(tried) if each.found
    ]
    if len(measured) < 2:
        return []
    right, top = max(x for _, x, _ in measured), max(y for _, _, y in measured)
    cells = [[" "] * (WIDTH + 1) for _ in range(HEIGHT + 1)]
    for mark, x, y in reversed(measured):  # the first of those in one cell is seen
        cells[HEIGHT - round(y / top * HEIGHT)][round(x / right * WIDTH) if right else 0] = mark
    margin = len(f"{top:,.1f}")
    labels = {0: f"{top:,.1f}", HEIGHT // 2: f"{top / 2:,.1f}", HEIGHT: "0"}
    lines = [f"{labels.get(line, ''):>{margin}} ┤{''.join(row).rstrip()}" for line, row in enumerate(cells)]
    ends = f"{right / 2:.2f}".center(WIDTH - 10) + f"{right:.2f}".rjust(9)
    return [
        "rows/s",
        *lines,
        " " * margin + " └" + "─" * (WIDTH + 1),
        " " * margin + "  0" + ends,
        (" " * margin + "  seconds of a row in the engine, median").rstrip(),
    ]


def advice(tried: Sequence[Tried], before: Tried) -> str:
    """Which point to choose for throughput, and what it gains over the settings as they are."""
    best = max(tried, key=lambda each: each.rate)
    if best.found is None:
        return "none of these settings could be measured"
    variables = " ".join(f"{name}={value}" for name, value in environment(best.point).items())
    gain = f", {best.rate / before.rate:.2f} times the settings as they are" if before.rate else ""
    refused = f", {best.refused:,} rows refused" if best.refused else ""
    return f"most rows: {variables} ({best.rate:,.2f} rows/s{gain}{refused})"
