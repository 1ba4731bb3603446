"""`nightmill simulate`: how long a job would take, on this machine or on GPUs that nobody has to have.

The simulator runs in a child process of the worker's: nothing of the engine is imported here.
"""

from __future__ import annotations

import json as jsonlib
import subprocess
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from api.cli import serving, simulation_report
from api.cli.friendly import EPILOG, Json, console, fail, friendly, out, print_json
from api.cli.options import OptionError
from api.cli.run import Exit, model_name
from db.settings import Settings

app = typer.Typer()
COMMAND = (sys.executable, "-P", "-m", "worker.simulate")
REFUSED = 2  # its status when an option cannot be
LENGTHS = "a number, per cents of rows such as 50:300,90:800, or FILE.parquet:COLUMN (numbers of tokens, or texts)"


@app.command(epilog=EPILOG)
@friendly
def simulate(
    rows: Annotated[int | None, typer.Option(min=1, help="Rows of the job; default: a million.")] = None,
    jobs: Annotated[
        Path | None,
        typer.Option(help="JSON file of jobs, of one tenant or several, instead of --rows."),
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="A model of this machine, or a public one's shape such as llama-3-70b.")
    ] = None,
    device: Annotated[
        str, typer.Option(help="here (this machine, whose steps are measured first), a100, h100 or h200.")
    ] = "here",
    count: Annotated[int, typer.Option(min=1, help="Devices.")] = 1,
    tensor_parallel: Annotated[int, typer.Option(min=1, help="Devices that share one copy of the model.")] = 1,
    dtype: Annotated[str | None, typer.Option(help="Of the weights; default: the settings', on GPUs bf16.")] = None,
    kv_dtype: Annotated[str | None, typer.Option(help="Of keys and values; default: as the engine chooses.")] = None,
    prompt_tokens: Annotated[str, typer.Option(help=f"Tokens of prompts: {LENGTHS}.")] = "512",
    output_tokens: Annotated[str, typer.Option(help="Tokens of answers, said in the same ways.")] = "128",
    shared_tokens: Annotated[int, typer.Option(min=0, help="Tokens that all prompts begin with alike.")] = 0,
    efficiency: Annotated[
        float, typer.Option(min=0.01, max=1.0, help="Share of a GPU's roofline that is reached: a guess, not measured.")
    ] = 0.6,
    price: Annotated[float | None, typer.Option(min=0, help="Of a device for an hour, in any currency.")] = None,
    max_sequences: Annotated[int | None, typer.Option(min=1, help="Sequences at a time; on GPUs 512.")] = None,
    token_budget: Annotated[int | None, typer.Option(min=1, help="Tokens of a step; on GPUs 8192.")] = None,
    prefix_caching: Annotated[bool, typer.Option(help="Whether shared beginnings are computed once.")] = True,
    json: Json = False,
) -> None:
    """Say how long a job would take and what it would cost, by the engine's own scheduler under a simulated clock."""
    if jobs is not None and rows is not None:
        raise OptionError("--rows: the jobs of --jobs have their own")
    settings = Settings()
    model = model_name(model or settings.model)
    if device == "here":
        serving.ensure_model(model, settings, console)
    given = {
        "rows": rows if rows or jobs else 1_000_000, "jobs": jobs, "model": model, "device": device, "count": count,
        "tensor-parallel": tensor_parallel, "dtype": dtype, "kv-dtype": kv_dtype, "prompt-tokens": prompt_tokens,
        "output-tokens": output_tokens, "shared-tokens": shared_tokens, "efficiency": efficiency, "price": price,
        "max-sequences": max_sequences, "token-budget": token_budget,
    }  # fmt: skip
    arguments = [f"--{name}={value}" for name, value in given.items() if value is not None]
    with console.status("measuring and simulating" if device == "here" else "simulating"):
        found = simulated(arguments if prefix_caching else [*arguments, "--no-prefix-caching"])
    if json:
        print_json(found)
        return
    if jobs is not None:
        simulation_report.show(found, out)
        return
    for line in simulation_report.lines(found):
        out.print(line, highlight=False, soft_wrap=True)


def simulated(arguments: list[str]) -> dict[str, Any]:
    """What worker.simulate prints."""
    done = subprocess.run([*COMMAND, *arguments], capture_output=True, text=True)  # noqa: S603 - our own command
    if done.returncode != 0:
        message = (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]
        fail(message, Exit.USAGE if done.returncode == REFUSED else Exit.UNAVAILABLE)
    found: dict[str, Any] = jsonlib.loads(done.stdout)
    return found
