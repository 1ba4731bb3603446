"""`nightmill bench`: how fast the engine is on this machine, where its time goes, and which settings suit a job.

The engine runs in a child process of the worker's, with this process's settings: nothing of it is imported here.
"""

from __future__ import annotations

import json as jsonlib
import os
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from api.cli import serving
from api.cli.friendly import EPILOG, Json, console, fail, friendly, out, print_json
from api.cli.grid import Point, Tried, advice, environment, plot, points, table
from api.cli.job_request import job_request
from api.cli.options import JobOptions, OptionError, with_job_options
from api.cli.run import Exit, model_name
from api.submission import specify
from db.settings import Settings

app = typer.Typer()
COMMAND = (sys.executable, "-P", "-m", "worker.bench")
DEFAULT_TOKENS = 64


@app.command(epilog=EPILOG)
@friendly
@with_job_options
def bench(
    source: Annotated[
        Path | None, typer.Argument(metavar="[INPUT]", help="Parquet file or folder: rows of it, as a job has them.")
    ] = None,
    rows: Annotated[int, typer.Option(min=1, help="Rows: a sample of INPUT, or made-up texts of 120 words.")] = 128,
    grid: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE,VALUE", help="A setting of the engine and values to try; repeatable."),
    ] = None,
    profile: Annotated[bool, typer.Option("--profile", help="Show where the time goes, part by part.")] = False,
    json: Json = False,
    *,
    options: JobOptions,
) -> None:
    """Say how fast the engine alone is here, with the settings as they are or over a grid. Takes the options of
    `submit` beside INPUT; without it, --max-tokens are written per row."""
    settings = Settings()
    model = model_name(options.model or settings.model)
    tries = points(grid) if grid else []
    work = Workload.of(source, rows, options, model)
    serving.ensure_model(model, settings, console)
    with console.status("measuring") as status:
        before = tried({}, work)
        found = []
        for place, point in enumerate(tries, 1):
            status.update(f"{place} of {len(tries)}: " + ", ".join(f"{name} {value}" for name, value in point.items()))
            found.append(tried(point, work))
    if before.found is None and not grid:
        fail(before.error or "not measured", Exit.UNAVAILABLE)
    if json:
        print_json([asdict(each) for each in found] if grid else before.found)
        return
    if grid:
        show_grid(found, before)
        return
    assert before.found is not None, "it has failed above"
    show(before.found, profile)


@dataclass(frozen=True, slots=True)
class Workload:
    """Arguments of worker.bench, what it reads, and the model that it takes."""

    arguments: tuple[str, ...]
    job: str | None
    model: str

    @classmethod
    def of(cls, source: Path | None, rows: int, options: JobOptions, model: str) -> Workload:
        """Raises OptionError."""
        if source is None:
            most = DEFAULT_TOKENS if options.max_tokens is None else options.max_tokens
            if most < 1:
                raise OptionError(f"--max-tokens {most}: must be at least 1")
            return cls(("--rows", str(rows), "--max-tokens", str(most)), None, model)
        if not source.exists():
            raise OptionError(f"{source}: no such file or folder")
        request = job_request(options, str(source.resolve()), None).model_copy(update={"model": model})
        job = specify(request, Settings()).model_dump_json()
        return cls(("--rows", str(rows), "--job"), job, model)


def tried(point: Point, work: Workload) -> Tried:
    """Measured in a process of its own, so that what one setting does to the memory is no other one's."""
    variables = {**os.environ, "NIGHTMILL_MODEL": work.model, **environment(point)}
    command = [*COMMAND, *work.arguments]
    done = subprocess.run(command, input=work.job or "", capture_output=True, text=True, env=variables)  # noqa: S603 - our own command, no shell
    if done.returncode != 0:
        return Tried(point, None, (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1])
    return Tried(point, jsonlib.loads(done.stdout))


def show(found: dict[str, Any], profile: bool) -> None:
    seconds, tokens, latency = found["seconds"], found["prompt_tokens"] + found["output_tokens"], found["latency"]
    refused = f", {found['refused']:,} rows refused: {found['refusal']}" if found["refused"] else ""
    out.print(
        f"{found['model']} {found['dtype']}, {found['sequences']} sequences: {found['rows'] / seconds:,.2f} rows/s, "
        f"{tokens / seconds:,.0f} tokens/s ({found['output_tokens'] / seconds:,.0f} written/s), "
        f"a row takes {latency['p50']:.2f} s (p99 {latency['p99']:.2f}), loaded in {found['load_seconds']:.1f} s"
        f"{refused}",
        highlight=False,
        markup=False,
        soft_wrap=True,
    )
    if profile:
        out.print(parts_table(found))
    out.print(f"host share of wall time: {found['host_share']:.1%}", highlight=False)


def show_grid(found: list[Tried], before: Tried) -> None:
    out.print(table(found))
    for line in [*plot(found), advice(found, before)]:
        out.print(line, highlight=False, soft_wrap=True, markup=False)


def parts_table(found: dict[str, Any]) -> Table:
    table = Table("part", "ms per step", "share of wall time")
    steps = max(found["steps"], 1)  # answers that their format settles take none
    for name, seconds in sorted(found["parts"].items(), key=lambda item: -item[1]):
        table.add_row(name, f"{1000 * seconds / steps:.3f}", f"{seconds / found['seconds']:.2%}")
    return table
