"""`nightmill simulate`: how long a job would take, on this machine or on GPUs that nobody has to have.

The simulator runs in a child process of the worker's: nothing of the engine is imported here.
"""

from __future__ import annotations

import json as jsonlib
import subprocess
import sys
from typing import Annotated, Any

import typer

from api.cli import serving
from api.cli.friendly import EPILOG, Json, console, fail, friendly, out, print_json
from api.cli.run import Exit, model_name
from db.settings import Settings

app = typer.Typer()
COMMAND = (sys.executable, "-P", "-m", "worker.simulate")
REFUSED = 2  # its status when an option cannot be
LENGTHS = "a number, per cents of rows such as 50:300,90:800, or FILE.parquet:COLUMN (numbers of tokens, or texts)"


@app.command(epilog=EPILOG)
@friendly
def simulate(
    rows: Annotated[int, typer.Option(min=1, help="Rows of the job.")] = 1_000_000,
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
    settings = Settings()
    model = model_name(model or settings.model)
    if device == "here":
        serving.ensure_model(model, settings, console)
    given = {
        "rows": rows, "model": model, "device": device, "count": count,
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
    for line in lines(found):
        out.print(line, highlight=False, soft_wrap=True)


def simulated(arguments: list[str]) -> dict[str, Any]:
    """What worker.simulate prints."""
    done = subprocess.run([*COMMAND, *arguments], capture_output=True, text=True)  # noqa: S603 - our own command
    if done.returncode != 0:
        message = (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]
        fail(message, Exit.USAGE if done.returncode == REFUSED else Exit.UNAVAILABLE)
    found: dict[str, Any] = jsonlib.loads(done.stdout)
    return found


def lines(found: dict[str, Any]) -> list[str]:
    """For people."""
    parallel = f", {found['tensor_parallel']} to a model" if found["tensor_parallel"] > 1 else ""
    devices = f"{found['count']} x {found['device']}{parallel}"
    said = [
        f"{found['rows']:,} rows of {found['model']} ({found['dtype']}) on {devices}: "
        f"{duration(found['seconds'])}, {found['rows_per_second']:,.2f} rows/s, "
        f"{found['prompt_tokens_per_second']:,.0f} prompt and {found['output_tokens_per_second']:,.0f} output tokens/s"
    ]
    if found["efficiency"] is not None:
        said.append(
            f"at {found['efficiency']:.0%} of the roofline, which is a guess and not measured; "
            f"at all of it: {duration(found['full_rate_seconds'])}"
        )
    else:
        said.append(
            f"from steps measured just now; the prices fitted to them are {found['step_error']:.0%} off, in the mean"
        )
    if found["extrapolated"]:
        said.append(
            f"simulated: {found['simulated_rows']:,} rows on one engine, {duration(found['simulated_seconds'])}; "
            f"the rest at the rate of their middle, {found['steady_rows_per_second']:,.2f} rows/s on all"
        )
    if found["refused_share"]:
        said.append(f"{found['refused_share']:.1%} of rows are too long for the model or the cache, and would fail")
    if found["cost"] is not None:
        said.append(f"cost: {found['cost']:,.2f} for {found['device_hours']:,.1f} device-hours")
    kib, mib = found["kv_bytes_per_token"] / 1024, found["kv_bytes_per_sequence"] / 2**20
    said.append(
        f"memory: weights {found['weight_bytes'] / 1e9:,.2f} GB; keys and values {kib:,.1f} KiB a token, "
        f"{mib:,.1f} MiB a row; {found['sequences_that_fit']:,} such rows fit, {found['max_sequences']:,} run at most, "
        f"{found['occupancy']:.0%} of these places are taken"
    )
    spent = ", ".join(f"{name} {share:.0%}" for name, share in found["shares"].items() if share >= 0.005)
    said.append(f"prefix cache: {found['cached_share']:.0%} of prompt tokens; time: {spent}; binds: {found['bound']}")
    return said


def duration(seconds: float) -> str:
    """As 2 d 3 h, 3 h 20 min, 4 min 5 s or 12.3 s."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, left = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours >= 48:
        return f"{hours // 24:,} d {hours % 24} h"
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {left} s"
