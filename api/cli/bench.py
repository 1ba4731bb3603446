"""`nightmill bench`: how fast the configured engine is on this machine, and where its time goes.

The engine runs in a child process of the worker's, with this process's settings: nothing of it is imported here.
"""

from __future__ import annotations

import json as jsonlib
import subprocess
import sys
from typing import Annotated, Any

import typer
from rich.table import Table

from api.cli import serving
from api.cli.friendly import EPILOG, Json, console, fail, friendly, out, print_json
from api.cli.run import Exit, model_name
from db.settings import Settings

app = typer.Typer()
COMMAND = (sys.executable, "-P", "-m", "worker.bench")


@app.command(epilog=EPILOG)
@friendly
def bench(
    rows: Annotated[int, typer.Option(min=1, help="Rows of the sample workload: texts of 120 words.")] = 128,
    max_tokens: Annotated[int, typer.Option(min=1, help="Tokens written per row, neither more nor fewer.")] = 64,
    profile: Annotated[bool, typer.Option("--profile", help="Show where the time goes, part by part.")] = False,
    json: Json = False,
) -> None:
    """Run a sample workload on the engine alone, with the settings of the environment, and say how fast it was."""
    settings = Settings()
    serving.ensure_model(model_name(settings.model), settings, console)
    with console.status("measuring"):
        found = measured(rows, max_tokens)
    if json:
        print_json(found)
        return
    seconds, tokens = found["seconds"], found["prompt_tokens"] + found["output_tokens"]
    out.print(
        f"{found['model']} {found['dtype']}, {found['sequences']} sequences: {found['rows'] / seconds:,.2f} rows/s, "
        f"{tokens / seconds:,.0f} tokens/s ({found['output_tokens'] / seconds:,.0f} written/s), "
        f"loaded in {found['load_seconds']:.1f} s",
        highlight=False,
        soft_wrap=True,
    )
    if profile:
        out.print(parts_table(found))
    out.print(f"host share of wall time: {found['host_share']:.1%}", highlight=False)


def measured(rows: int, max_tokens: int) -> dict[str, Any]:
    """What worker.bench prints."""
    command = [*COMMAND, "--rows", str(rows), "--max-tokens", str(max_tokens)]
    done = subprocess.run(command, capture_output=True, text=True)  # noqa: S603 - our own command, no shell
    if done.returncode != 0:
        fail((done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1], Exit.UNAVAILABLE)
    found: dict[str, Any] = jsonlib.loads(done.stdout)
    return found


def parts_table(found: dict[str, Any]) -> Table:
    table = Table("part", "ms per step", "share of wall time")
    for name, seconds in sorted(found["parts"].items(), key=lambda item: -item[1]):
        table.add_row(name, f"{1000 * seconds / found['steps']:.3f}", f"{seconds / found['seconds']:.2%}")
    return table
