"""`nightmill plan`: what a job will take, before it is submitted."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table

from api.cli.follow import duration, transfer
from api.cli.friendly import EPILOG, Json, Url, console, friendly, out, print_json
from api.cli.job_request import job_request
from api.cli.options import JobOptions, OptionError, with_job_options
from api.cli.run import Exit, model_name
from api.cli.serving import Service, service
from api.client import Client
from api.plan_views import LIMITS, SAMPLE_ROWS, PlanView
from api.schemas import JobRequest
from api.transport import RequestRefused
from db.plan_results import Interval, PlanResult
from db.settings import Settings

app = typer.Typer()
LINE_SECONDS = 5.0


@app.command(epilog=EPILOG)
@friendly
@with_job_options
def plan(
    source: Annotated[str, typer.Argument(metavar="INPUT", help="Parquet file or folder, or s3://bucket/….")],
    sample_rows: Annotated[int, typer.Option(min=8, max=1024, help="Rows that are computed for it.")] = SAMPLE_ROWS,
    json: Json = False,
    url: Url = None,
    *,
    options: JobOptions,
) -> None:
    """Say what a job will take, from a sample: tokens, time, cost, failures. Takes the options of `submit`."""
    settings = Settings()
    remote = "://" in source
    path = Path(source)
    if not remote and not path.exists():
        raise OptionError(f"{source}: no such file or folder")
    model = model_name(options.model or settings.model)
    request = job_request(options, source if remote else str(path.resolve()), None).model_copy(update={"model": model})
    folders = () if remote else (path.resolve() if path.is_dir() else path.resolve().parent,)
    with service(settings, url, folders, model, console) as running:
        made = _ask(running, request, None if remote else path, sample_rows, console)
        found = follow(running.client, made.id, console, running.tick)
    if json:
        print_json(found)
    if found.result is None:
        assert found.error is not None, "a plan that has failed says why"
        console.print(f"{found.error.code}: {found.error.message}", style="red", highlight=False, markup=False)
        raise typer.Exit(Exit.FAILED)
    if not json:
        show(found.result, out)


def _ask(running: Service, request: JobRequest, path: Path | None, sample_rows: int, told: Console) -> PlanView:
    """A server that may not read the file where it lies gets it as an upload."""
    try:
        return running.client.plans.make(request, sample_rows=sample_rows)
    except RequestRefused as error:
        refused = error.problem.code == "dataset_refused" and error.problem.field == "input"
        if path is None or not refused or not path.is_file():
            raise
    with transfer(f"uploading {path.name}", told, path.stat().st_size) as heard:
        uri = running.client.upload(path, told=heard).uri
    return running.client.plans.make(request.model_copy(update={"input": uri}), sample_rows=sample_rows)


def follow(client: Client, plan_id: str, console: Console, tick: Callable[[], None] = lambda: None) -> PlanView:
    """Show how far a plan is until it has ended; on a terminal as a bar. Ctrl-C stops waiting, not the worker."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("rows of the sample"))
    said, status = 0.0, None
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("waiting", total=None)
        for found in client.plans.watch(plan_id):
            tick()
            total = min(found.sample_rows, found.rows)
            progress.update(task, description=found.status.value, total=total, completed=found.rows_done)
            late = time.monotonic() - said >= LINE_SECONDS
            if not console.is_terminal and (late or found.status is not status):
                console.print(f"{found.status.value}: {found.rows_done} of {total} rows of the sample", highlight=False)
                said, status = time.monotonic(), found.status
    return found


def show(result: PlanResult, console: Console) -> None:
    """The plan as a table."""
    rows, memory = result.rows, result.memory
    table = Table("", "expected", "80 % interval", title=f"{rows.total:,} rows, {rows.sampled:,} computed")
    figures: list[tuple[str, Interval | None, Callable[[float], str]]] = [
        ("time", result.seconds, duration),
        ("prompt tokens", result.prompt_tokens, _count),
        ("answer tokens", result.output_tokens, _count),
        ("all tokens", result.total_tokens, _count),
        ("rows that fail", rows.failing, _count),
        ("rows too long", rows.too_long, _count),
        ("cost", result.cost, "{:,.2f}".format),
    ]
    for name, figure, shown in figures:
        if figure is not None:
            table.add_row(name, shown(figure.value), f"{shown(figure.low)} to {shown(figure.high)}")
    console.print(table)
    causes = ", ".join(f"{code} ({count:,})" for code, count in rows.causes.items())
    duplicates = "not known, as not every row was read" if rows.duplicates is None else f"{rows.duplicates:,} rows"
    lines = (
        f"{result.rows_per_second:,.1f} rows/s · {result.tokens_per_second:,.0f} tokens/s · {result.workers} workers",
        f"prompt tokens from the cache: {result.cached_share:.0%} · duplicates: {duplicates}",
        f"keys and values: {memory.bytes_per_token:,} bytes a token, {memory.bytes_per_sequence / 1e6:,.1f} MB a row; "
        f"{memory.sequences:,} rows fit into {memory.cache_bytes / 1e6:,.0f} MB",
        f"the limit is {LIMITS[result.limit]} ({result.shares.get(result.limit, 0.0):.0%} of the time)",
        *([f"failed in what was read: {causes}"] if causes else []),
    )
    for line in lines:
        console.print(line, highlight=False, soft_wrap=True)
    if result.devices:
        elsewhere = Table("elsewhere", "at a guess", "at best", title="by data sheets; nightmill simulate says more")
        for each in result.devices:
            elsewhere.add_row(f"{each.count} x {each.device}", duration(each.seconds), duration(each.least_seconds))
        console.print(elsewhere)
    for example in result.examples:
        text = example.error if example.error is not None else (example.output or "")
        console.print(f"row {example.row:,}: {text}", markup=False, highlight=False, soft_wrap=True)


def _count(value: float) -> str:
    return f"{value:,.0f}"
