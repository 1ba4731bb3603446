"""`nightmill`: the command line. Every command ends with a status of api.cli.run.Exit, and an error is a message."""

from __future__ import annotations

import os
import sys
import time
from importlib.metadata import version as package_version
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from api.cli import access, bench, doctor, job_commands, plan, run_batch, schedule_commands, serving, simulate, webhooks
from api.cli import demo as demonstration
from api.cli.friendly import EPILOG, Json, Url, answer, console, friendly, out, print_json
from api.cli.options import JobOptions, with_job_options
from api.cli.run import exit_status, model_name, report
from api.cli.run import run as run_job
from api.embedded.stack import embedded
from db import model_files
from db.redaction import shown
from db.settings import Settings

app = typer.Typer(
    name="nightmill",
    help="Batch inference for language models: a Parquet dataset in, a Parquet dataset out.",
    epilog=EPILOG,
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
)
models_app = typer.Typer(help="Models on this machine.", no_args_is_help=True)
app.add_typer(models_app, name="models")
app.add_typer(access.keys_app, name="keys")
app.add_typer(access.tenants_app, name="tenants")
app.add_typer(access.app)
app.add_typer(job_commands.app)
app.add_typer(plan.app)
app.add_typer(schedule_commands.app, name="schedule")
app.add_typer(run_batch.app)
app.add_typer(doctor.app)
app.add_typer(webhooks.app, name="webhooks")
app.add_typer(bench.app)
app.add_typer(simulate.app)


@app.command(epilog=EPILOG)
@friendly
def up(
    host: Annotated[str | None, typer.Option(help="Address the API listens on.")] = None,
    port: Annotated[int | None, typer.Option(help="Port the API listens on; 0 picks a free one.")] = None,
    json: Json = False,
) -> None:
    """Run broker, API and worker in the foreground until Ctrl-C."""
    given = {name: value for name, value in (("host", host), ("port", port)) if value is not None}
    settings = Settings().model_copy(update=given)
    serving.ensure_model(model_name(settings.model), settings, console)
    with embedded(settings, logs=None, lasting=True) as stack:
        if stack.warning:
            console.print(stack.warning, style="bold yellow")
        console.print(f"Nightmill answers at {stack.url} (broker: {stack.broker_kind}). Ctrl-C stops it.")
        if json:
            print_json({"url": stack.url, "broker": stack.broker_kind})
        try:
            while True:
                time.sleep(0.5)
                stack.check()
        except KeyboardInterrupt:
            console.print("stopping; running shards are handed back")


@app.command(epilog=EPILOG)
@friendly
@with_job_options
def run(
    source: Annotated[
        str, typer.Argument(metavar="INPUT", help="Parquet file, or folder of Parquet files, or s3://bucket/….")
    ],
    output: Annotated[str, typer.Option(help="Folder for the result, empty or absent, or s3://bucket/….")],
    strict: Annotated[bool, typer.Option("--strict", help="Exit with 3 if any row failed.")] = False,
    json: Json = False,
    url: Url = None,
    *,
    options: JobOptions,
) -> None:
    """Run one job from start to end: start what is missing, submit, follow, and leave the result in a folder."""
    job = run_job(options, source, output, Settings(), url, console)
    report(job, None if "://" in output else Path(output).resolve(), console)
    if json:
        print_json(job)
    raise typer.Exit(exit_status(job, strict))


@app.command(epilog=EPILOG)
@friendly
def demo(
    recipe: Annotated[demonstration.DemoRecipe, typer.Option(help="What to show.")] = demonstration.DemoRecipe.LABEL,
    rows: Annotated[
        int | None, typer.Option(min=1, help="Rows to take; default: what two cores do in a minute.")
    ] = None,
    output: Annotated[Path, typer.Option(help="Folder that gets a new folder with the result.")] = Path("demo-output"),
    min_accuracy: Annotated[float, typer.Option(min=0, max=1, help="label: exit with 1 below this accuracy.")] = 0.0,
    json: Json = False,
    url: Url = None,
) -> None:
    """Run a real model over a real dataset, and compare the answers with people's."""
    tables = console if json else out
    job, passed = demonstration.run(recipe, rows, output, min_accuracy, Settings(), url, console, tables)
    if json:
        print_json({"passed": passed, "job": job})
    raise typer.Exit(0 if passed else 1)


@app.command("api", epilog=EPILOG)
@friendly
def serve_api() -> None:
    """Run the API alone, as one part of a larger installation."""
    from api.app import serve  # Imported where used: the other commands would start half as fast.

    serve(Settings())


@app.command("worker", epilog=EPILOG)
@friendly
def start_worker() -> None:
    """Run a worker alone, as one part of a larger installation."""
    # Becomes the worker, so that signals and exit status are its own.
    os.execv(sys.executable, [sys.executable, "-P", "-m", "worker"])  # noqa: S606 - fixed arguments, no shell


@app.command(epilog=EPILOG)
@friendly
def migrate(json: Json = False) -> None:
    """Bring the database's tables up to date; the API does so itself at its start."""
    from db import session  # See serve_api.

    database = session.connect(Settings().database)
    session.migrate(database)
    place = shown(database.url.render_as_string())
    console.print(f"{place} is up to date", highlight=False)
    if json:
        print_json({"database": place, "revision": session.revision(database)})
    database.dispose()


@app.command(epilog=EPILOG)
def version(json: Json = False) -> None:
    """Print the version."""
    number = package_version("nightmill")
    answer(json, {"version": number}, number)


@models_app.command("list", epilog=EPILOG)
@friendly
def list_models(json: Json = False) -> None:
    """List the models known by name and those found on this machine."""
    settings = Settings()
    found = {model.name: model for model in model_files.installed(settings)}
    if json:
        here = [{"name": m.name, "bytes": m.num_bytes, "path": m.path} for m in found.values()]
        names = ((name, entry.num_bytes) for name, entry in model_files.CATALOG.items() if name not in found)
        print_json({"models": here + [{"name": name, "bytes": size, "path": None} for name, size in names]})
        return
    table = Table("model", "size", "where")
    for name, entry in model_files.CATALOG.items():
        if name not in found:
            table.add_row(name, f"{entry.num_bytes / 1e6:,.0f} MB", f"not pulled: nightmill models pull {name}")
    for model in found.values():
        table.add_row(model.name, f"{model.num_bytes / 1e6:,.0f} MB", str(model.path))
    out.print(table)


@models_app.command("pull", epilog=EPILOG)
@friendly
def pull_model(
    name: Annotated[str, typer.Argument(help="A known name, or a hub id like org/name.")], json: Json = False
) -> None:
    """Fetch a model unless it is here already, and print where it lies."""
    settings = Settings()
    serving.ensure_model(name, settings.model_copy(update={"engine_factory": ""}), console)
    path = model_files.find(name, settings)
    answer(json, {"name": name, "path": path}, str(path))
