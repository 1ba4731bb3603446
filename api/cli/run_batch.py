"""`nightmill run-batch`: a JSONL file of OpenAI requests in, one of answers out, in the same order."""

from __future__ import annotations

import json as jsonlib
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from api.batches import Batches
from api.cli import serving
from api.cli.follow import follow
from api.cli.friendly import EPILOG, Json, Url, console, friendly, print_json
from api.cli.options import OptionError
from api.cli.run import Exit, cancel
from db.settings import Settings

app = typer.Typer()
POLL_SECONDS = 0.2
ENDED = ("completed", "failed", "expired", "cancelled")
SHOWN_ERRORS = 5


@app.command("run-batch", epilog=EPILOG)
@friendly
def run_batch(
    source: Annotated[Path, typer.Option("--input-file", "-i", help="JSONL file of requests, as OpenAI's batches.")],
    output: Annotated[Path, typer.Option("--output-file", "-o", help="JSONL file for the answers; replaced.")],
    strict: Annotated[bool, typer.Option("--strict", help="Exit with 3 if any request failed.")] = False,
    json: Json = False,
    url: Url = None,
) -> None:
    """Run a file of OpenAI requests from start to end: start what is missing, and leave every answer in one file."""
    endpoint, model = first_request(source)
    settings = Settings()
    with serving.service(settings, url, (), settings.openai_models.get(model, model), console) as running:
        batches = Batches(running.client)
        with console.status(f"sending {source.name}"):
            batch = batches.create(batches.send(source), endpoint)
        batch = _watch(batches, batch["id"], running)
        if batch["status"] == "failed" and batch["output_file_id"] is None:
            _show_errors(source, batch)
            if json:
                print_json({"batch": batch, "output": None, "lines": 0})
            raise typer.Exit(Exit.USAGE)
        with console.status("fetching the answers"):
            num_lines = collect(source, output, batches, batch)
    counts = batch["request_counts"]
    console.print(f"{batch['status']}: {counts['completed']:,} of {counts['total']:,} requests", highlight=False)
    console.print(f"result: {output} ({num_lines:,} lines)", highlight=False, soft_wrap=True)
    if json:
        print_json({"batch": batch, "output": output.resolve(), "lines": num_lines})
    if batch["status"] != "completed":
        raise typer.Exit(Exit.FAILED)
    raise typer.Exit(Exit.ROWS_FAILED if strict and counts["failed"] else Exit.OK)


def first_request(source: Path) -> tuple[str, str]:
    """Endpoint and model of the first line; all lines must have the same. Raises OptionError."""
    if not source.is_file():
        raise OptionError(f"--input-file {source}: no such file")
    try:
        with source.open("rb") as file:
            line = jsonlib.loads(next(line for line in file if line.strip()))
        return str(line["url"]), str(line["body"]["model"])
    except (StopIteration, ValueError, KeyError, TypeError) as error:
        raise OptionError(f"--input-file {source}: its first line is no request with a url and a model") from error


def _watch(batches: Batches, batch_id: str, running: serving.Service) -> dict[str, Any]:
    """The batch once it has ended. Ctrl-C cancels it."""
    shown = False
    try:
        while (batch := batches.get(batch_id))["status"] not in ENDED:
            running.tick()
            if batch["nightmill"]["job_id"] is not None and not shown:
                follow(running.client, batch["nightmill"]["job_id"], console, running.tick)
                shown = True
            time.sleep(POLL_SECONDS)
    except KeyboardInterrupt:
        console.print("cancelling; answers that are finished are kept by the service", style="yellow")
        _stop(batches, batch_id, running.tick)
        raise
    return batch


def _stop(batches: Batches, batch_id: str, tick: Callable[[], None]) -> None:
    job_id = batches.get(batch_id)["nightmill"]["job_id"]
    if job_id is None:
        batches.cancel(batch_id)
    else:
        cancel(batches.client, job_id, tick)


def _show_errors(source: Path, batch: dict[str, Any]) -> None:
    errors = (batch["errors"] or {"data": []})["data"]
    for error in errors[:SHOWN_ERRORS]:
        place = "" if error["line"] is None else f"line {error['line']}: "
        console.print(f"{source}: {place}{error['message']}", style="red", highlight=False, markup=False)
    if len(errors) > SHOWN_ERRORS:
        console.print(f"and {len(errors) - SHOWN_ERRORS} more errors", style="red", highlight=False)


def collect(source: Path, output: Path, batches: Batches, batch: dict[str, Any]) -> int:
    """Write the lines of both files of a batch in the order of its requests; returns how many. The output appears whole
    or not at all."""
    good, bad = (_lines(batches, batch[name]) for name in ("output_file_id", "error_file_id"))
    heads = [next(good, None), next(bad, None)]
    partial = output.with_name(f".{output.name}.{uuid.uuid4().hex}")
    count = 0
    try:
        with source.open("rb") as requests, partial.open("wb") as file:
            for request in requests:
                if not request.strip():
                    continue
                custom_id = jsonlib.loads(request)["custom_id"]
                place = next((i for i, head in enumerate(heads) if head is not None and head[0] == custom_id), None)
                if place is None:
                    raise OptionError(f"{source} was changed: the batch has no answer to {custom_id!r} where it is now")
                head = heads[place]
                assert head is not None, "it was just looked at"
                file.write(head[1] + b"\n")
                heads[place] = next((good, bad)[place], None)
                count += 1
        partial.replace(output)
    finally:
        partial.unlink(missing_ok=True)
    return count


def _lines(batches: Batches, file_id: str | None) -> Iterator[tuple[str, bytes]]:
    """custom_id and bytes of each line; nothing where there is no file."""
    for line in () if file_id is None else batches.lines(file_id):
        yield jsonlib.loads(line)["custom_id"], line
