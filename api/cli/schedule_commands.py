"""`nightmill schedule …`: jobs that run by themselves."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any

import typer
from pydantic import ValidationError
from rich.table import Table

from api.cli import serving
from api.cli.friendly import EPILOG, Json, Url, answer, console, friendly, out, print_json
from api.cli.job_request import job_request
from api.cli.options import JobOptions, OptionError, with_job_options
from api.cli.run import model_name
from api.schedule_schemas import RunView, ScheduleRequest, ScheduleView
from db.settings import Settings

app = typer.Typer(help="Jobs that run by themselves, night after night.", no_args_is_help=True)
Name = Annotated[str, typer.Argument(metavar="NAME")]
HOUR = 3600.0


class Misfire(StrEnum):
    COALESCE = "coalesce"
    SKIP = "skip"
    ALL = "all"


class Overlap(StrEnum):
    SKIP = "skip"
    QUEUE = "queue"
    CANCEL_PREVIOUS = "cancel_previous"


@app.command(epilog=EPILOG)
@friendly
@with_job_options
def create(
    name: Name,
    source: Annotated[str, typer.Argument(metavar="INPUT", help="On the server; may name dates: /data/{{ ds }}.")],
    cron: Annotated[str, typer.Option(help="Five fields, as in '30 2 * * *'.")],
    timezone: Annotated[str, typer.Option(help="As in Europe/Berlin.")] = "UTC",
    output: Annotated[str | None, typer.Option(help="Folder on the server; it must name the date.")] = None,
    misfire: Annotated[Misfire, typer.Option(help="What is made of missed fire times.")] = Misfire.COALESCE,
    overlap: Annotated[Overlap, typer.Option(help="While an earlier run goes on.")] = Overlap.SKIP,
    only_new: Annotated[bool, typer.Option("--only-new", help="Leave out rows that earlier runs computed.")] = False,
    new_by: Annotated[str | None, typer.Option(help="The same, by this column instead of the whole row.")] = None,
    window_hours: Annotated[float | None, typer.Option(help="Pause after this, go on at the next fire time.")] = None,
    grace_hours: Annotated[float, typer.Option(help="How long a run waits for its input.")] = 1.0,
    start_at: Annotated[str | None, typer.Option(help="With offset: 2026-01-31T00:00:00+01:00.")] = None,
    end_at: Annotated[str | None, typer.Option(help="It does not fire after.")] = None,
    json: Json = False,
    url: Url = None,
    *,
    options: JobOptions,
) -> None:
    """Create a schedule from the options of a job, and print when it fires first."""
    job = job_request(options, source, output).model_dump(mode="json", exclude_none=True)
    job |= {"model": "" if options.model is None else model_name(options.model)}
    job |= {"only_new": {"key": new_by}} if only_new or new_by is not None else {}
    values: dict[str, Any] = {
        "name": name,
        "cron": cron,
        "timezone": timezone,
        "job": job,
        "misfire": misfire.value,
        "overlap": overlap.value,
        "start_at": start_at,
        "end_at": end_at,
        "grace_seconds": grace_hours * HOUR,
        "window_seconds": None if window_hours is None else window_hours * HOUR,
    }
    try:
        request = ScheduleRequest.model_validate(values)
    except ValidationError as error:
        raise OptionError("\n".join(_option(item["loc"][-1], item["msg"]) for item in error.errors())) from error
    with serving.connected(Settings(), url) as client:
        schedule = client.schedules.create(request)
    console.print(f"{schedule.name} fires first at {_next(schedule)}", highlight=False)
    if json:
        print_json(schedule)


def _option(field: int | str, message: str) -> str:
    names = {"grace_seconds": "grace_hours", "window_seconds": "window_hours"}
    return f"--{names.get(str(field), str(field)).replace('_', '-')}: {message.removeprefix('Value error, ')}"


@app.command("list", epilog=EPILOG)
@friendly
def list_schedules(json: Json = False, url: Url = None) -> None:
    """List the schedules."""
    with serving.connected(Settings(), url) as client:
        found = client.schedules.list()
    if json:
        print_json({"schedules": found})
        return
    table = Table("schedule", "cron", "zone", "next", "runs")
    for schedule in found:
        table.add_row(schedule.name, schedule.spec.cron, schedule.spec.timezone, _next(schedule), _counts(schedule))
    out.print(table)


@app.command(epilog=EPILOG)
@friendly
def show(
    name: Name,
    runs: Annotated[int, typer.Option(min=0, help="How many runs of the history.")] = 20,
    json: Json = False,
    url: Url = None,
) -> None:
    """Show a schedule and its newest runs."""
    with serving.connected(Settings(), url) as client:
        schedule = client.schedules.get(name)
        history = list(client.schedules.runs(name, limit=runs))
    if json:
        print_json({"schedule": schedule, "runs": history})
        return
    spec = schedule.spec
    out.print(f"{schedule.name}: {spec.cron} {spec.timezone}, next {_next(schedule)}", highlight=False)
    out.print(f"{spec.job.input} -> {spec.job.output or 'a folder of the service'}", highlight=False, soft_wrap=True)
    out.print(_table(history))


@app.command(epilog=EPILOG)
@friendly
def pause(name: Name, json: Json = False, url: Url = None) -> None:
    """Fire no more until it is resumed; what was fired goes on."""
    with serving.connected(Settings(), url) as client:
        schedule = client.schedules.pause(name)
    console.print(f"{schedule.name}: {_next(schedule)}", highlight=False)
    if json:
        print_json(schedule)


@app.command(epilog=EPILOG)
@friendly
def resume(name: Name, json: Json = False, url: Url = None) -> None:
    """Fire again, from the next fire time on."""
    with serving.connected(Settings(), url) as client:
        schedule = client.schedules.resume(name)
    console.print(f"{schedule.name}: next {_next(schedule)}", highlight=False)
    if json:
        print_json(schedule)


@app.command(epilog=EPILOG)
@friendly
def run(name: Name, json: Json = False, url: Url = None) -> None:
    """Run it once, now, and print the run's id."""
    with serving.connected(Settings(), url) as client:
        begun = client.schedules.run(name)
    answer(json, begun, begun.id)


@app.command(epilog=EPILOG)
@friendly
def backfill(
    name: Name,
    first: Annotated[datetime, typer.Argument(formats=["%Y-%m-%d"], metavar="FIRST", help="Date, as 2026-01-31.")],
    last: Annotated[datetime, typer.Argument(formats=["%Y-%m-%d"], metavar="LAST", help="Date, included.")],
    parallel: Annotated[int, typer.Option(min=1, max=16, help="Runs at work at once.")] = 1,
    json: Json = False,
    url: Url = None,
) -> None:
    """Make up for dates of the past: a run for each that has none, oldest first."""
    with serving.connected(Settings(), url) as client:
        done = client.schedules.backfill(name, first.date(), last.date(), parallel=parallel)
    console.print(f"{len(done.runs)} runs added, {done.known} were there", highlight=False)
    if json:
        print_json(done)


@app.command(epilog=EPILOG)
@friendly
def delete(name: Name, json: Json = False, url: Url = None) -> None:
    """Delete a schedule and its history; its jobs stay."""
    with serving.connected(Settings(), url) as client:
        client.schedules.delete(name)
    console.print(f"{name} is deleted", highlight=False)
    if json:
        print_json({"deleted": name})


def _next(schedule: ScheduleView) -> str:
    if schedule.paused:
        return "paused"
    if schedule.next_at is None:
        return "never"
    return schedule.spec.timetable.local(schedule.next_at.timestamp()).isoformat(sep=" ", timespec="minutes")


def _counts(schedule: ScheduleView) -> str:
    return ", ".join(f"{count} {status}" for status, count in sorted(schedule.runs.items()))


def _table(history: list[RunView]) -> Table:
    table = Table("date", "fired", "by", "status", "rows", "failed", "known before", "job", "reason")
    for run in history:
        rows, failed, skipped = (
            "" if count is None else f"{count:,}" for count in (run.rows, run.rows_failed, run.rows_skipped)
        )
        fired = run.fire_at.isoformat(sep=" ", timespec="minutes")
        row = (run.logical_date, fired, run.trigger.value, run.status, rows, failed, skipped)
        table.add_row(*row, run.job_id or "", run.reason or "")
    return table
