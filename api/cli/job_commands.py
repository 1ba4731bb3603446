"""Commands about jobs of a service that runs already: submit, status, watch, results; pause, resume, cancel, retry."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from api.cli import serving
from api.cli.follow import duration, follow, transfer
from api.cli.friendly import EPILOG, Json, Url, answer, console, friendly, out, print_json
from api.cli.job_request import job_request
from api.cli.options import JobOptions, OptionError, with_job_options
from api.cli.run import exit_status, model_name, report
from api.schemas import JobView
from api.spans import span
from api.transport import RequestRefused, Told
from db.settings import Settings

app = typer.Typer()
Fetched = Annotated[Path | None, typer.Option("--output", help="Fetch the files into this folder, empty or absent.")]


@app.command(epilog=EPILOG)
@friendly
@with_job_options
def submit(
    source: Annotated[
        str,
        typer.Argument(
            metavar="INPUT", help="Parquet file or folder, sent to the server if it must be; or s3://bucket/…"
        ),
    ],
    output: Annotated[
        str | None, typer.Option(help="Folder for the result on the server's disk, or s3://bucket/folder.")
    ] = None,
    key: Annotated[str | None, typer.Option(help="Idempotency key: the same key never makes a second job.")] = None,
    json: Json = False,
    url: Url = None,
    *,
    options: JobOptions,
) -> None:
    """Create a job at a running service and print its id."""
    settings = Settings()
    path = Path(source)
    place = output if output is None or "://" in output else str(Path(output).resolve())
    model = None if options.model is None else model_name(options.model)
    with serving.connected(settings, url) as client:
        remote = "://" in source
        request = job_request(options, source if remote else str(path.resolve()), place)
        request = request.model_copy(update={"model": model or "", "idempotency_key": key})
        try:
            job = client.submit(request)
        except RequestRefused as error:
            if (
                remote
                or error.problem.code != "dataset_refused"
                or error.problem.field != "input"
                or not path.is_file()
            ):
                raise
            with transfer(f"uploading {path.name}", console, path.stat().st_size) as told:
                uri = client.upload(path, told=told).uri
            job = client.submit(request.model_copy(update={"input": uri}))
    answer(json, job, job.id)


@app.command(epilog=EPILOG)
@friendly
def status(
    job_id: Annotated[str | None, typer.Argument(metavar="[JOB]", help="None: the newest jobs.")] = None,
    limit: Annotated[int, typer.Option(help="How many jobs to list.")] = 20,
    json: Json = False,
    url: Url = None,
) -> None:
    """Show a job, or the newest jobs."""
    with serving.connected(Settings(), url) as client:
        found = list(client.list(limit=limit)) if job_id is None else [client.get(job_id)]
    if json:
        print_json({"jobs": found} if job_id is None else found[0])
        return
    table = Table("job", "status", "recipe", "rows", "failed", "rows/s", "left", "ends", "output")
    for job in found:
        left = "" if job.eta_seconds is None else duration(job.eta_seconds)
        ends = "" if job.ends is None else span(job.ends)
        rate = "" if job.rates.rows_per_second is None else f"{job.rates.rows_per_second:,.1f}"
        rows = f"{job.counts.done:,}/{job.counts.total:,}"
        table.add_row(job.id, job.status, job.recipe, rows, f"{job.counts.failed:,}", rate, left, ends, job.output)
    out.print(table)
    for job in found if job_id is not None else []:
        if job.error is not None:
            out.print(f"{job.error.code}: {job.error.message}", markup=False)


@app.command(epilog=EPILOG)
@friendly
def watch(
    job_id: Annotated[str, typer.Argument(metavar="JOB")],
    strict: Annotated[bool, typer.Option("--strict", help="Exit with 3 if any row failed.")] = False,
    json: Json = False,
    url: Url = None,
) -> None:
    """Follow a job until it has ended. Ctrl-C stops watching, not the job."""
    with serving.connected(Settings(), url) as client:
        job = follow(client, job_id, console)
    report(job, None if "://" in job.output else Path(job.output), console)
    if json:
        print_json(job)
    raise typer.Exit(exit_status(job, strict))


@app.command(epilog=EPILOG)
@friendly
def results(
    job_id: Annotated[str, typer.Argument(metavar="JOB")],
    output: Fetched = None,
    partial: Annotated[bool, typer.Option("--partial", help="Of a job that goes on, what is finished so far.")] = False,
    json: Json = False,
    url: Url = None,
) -> None:
    """List the finished files of a job, or fetch them."""
    with serving.connected(Settings(), url) as client:
        if output is not None:
            _fetch(output, lambda folder, told: client.download(job_id, folder, partial=partial, told=told), json)
            return
        files = list(client.results(job_id, partial=partial))
        if json:
            print_json({"files": files})
            return
        table = Table("file", "input rows", "rows", "bytes", "SHA-256")
        for file in files:
            covered = f"{file.first_row:,}-{file.stop_row - 1:,}" if file.rows else ""
            table.add_row(file.name, covered, f"{file.rows:,}", f"{file.bytes:,}", file.sha256)
        out.print(table)


@app.command(epilog=EPILOG)
@friendly
def errors(
    job_id: Annotated[str, typer.Argument(metavar="JOB")], output: Fetched = None, json: Json = False, url: Url = None
) -> None:
    """List the files of a job's failed rows, or fetch them: the input's own columns, to be submitted again."""
    with serving.connected(Settings(), url) as client:
        if output is not None:
            _fetch(output, lambda folder, told: client.download_errors(job_id, folder, told=told), json)
            return
        files = list(client.errors(job_id))
        if json:
            print_json({"files": files})
            return
        table = Table("file", "failed rows")
        for file in files:
            table.add_row(file.name, f"{file.rows:,}")
        out.print(table)


def _fetch(output: Path, fetch: Callable[[Path, Told], Sequence[Path]], json: bool) -> None:
    """Raises OptionError when there is something in the folder already."""
    if output.is_dir() and any(output.iterdir()):
        raise OptionError(f"--output {output}: the folder is not empty; name another one or empty it")
    with transfer("fetching", console) as told:
        paths = fetch(output, told)
    console.print(f"{len(paths)} files in {output}", highlight=False)
    if json:
        print_json({"files": paths})


@app.command(epilog=EPILOG)
@friendly
def cancel(job_id: Annotated[str, typer.Argument(metavar="JOB")], json: Json = False, url: Url = None) -> None:
    """Stop a job; rows that are finished are kept."""
    with serving.connected(Settings(), url) as client:
        job = client.cancel(job_id)
    _changed(job, json)


@app.command(epilog=EPILOG)
@friendly
def pause(job_id: Annotated[str, typer.Argument(metavar="JOB")], json: Json = False, url: Url = None) -> None:
    """Begin nothing more of a job until it is resumed."""
    with serving.connected(Settings(), url) as client:
        job = client.pause(job_id)
    _changed(job, json)


@app.command(epilog=EPILOG)
@friendly
def resume(job_id: Annotated[str, typer.Argument(metavar="JOB")], json: Json = False, url: Url = None) -> None:
    """Go on with a paused job."""
    with serving.connected(Settings(), url) as client:
        job = client.resume(job_id)
    _changed(job, json)


@app.command(epilog=EPILOG)
@friendly
def retry(job_id: Annotated[str, typer.Argument(metavar="JOB")], json: Json = False, url: Url = None) -> None:
    """Try the failed rows of a job that has ended again, as a new job, and print its id."""
    with serving.connected(Settings(), url) as client:
        job = client.retry(job_id)
    answer(json, job, job.id)


def _changed(job: JobView, json: bool) -> None:
    console.print(f"{job.id}: {job.status.value}", highlight=False)
    if json:
        print_json(job)
