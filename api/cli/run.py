"""`nightmill run`: submit a file, follow the job, and leave the result in a folder."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from enum import IntEnum
from pathlib import Path
from typing import TypeAlias

from rich.console import Console

from api.cli.follow import duration, follow, transfer
from api.cli.job_request import job_request
from api.cli.options import JobOptions, OptionError
from api.cli.serving import Service, service
from api.client import Client
from api.schemas import JobRequest, JobView
from api.transport import ClientError, RequestRefused
from db import model_files
from db.models import JobStatus
from db.s3_uris import START, is_s3, split, without_secrets
from db.settings import Settings

CANCEL_SECONDS = 30.0
Address: TypeAlias = Path | str  # text: of a bucket, or of a path that was not looked at yet


class Exit(IntEnum):
    """Exit statuses of every command."""

    OK = 0
    FAILED = 1  # the job failed, or was cancelled by someone else
    USAGE = 2  # an option, the input or the job is wrong; nothing was started
    ROWS_FAILED = 3  # with --strict: some rows failed
    UNAVAILABLE = 4  # the service, the model or the home cannot be used
    INTERRUPTED = 130  # Ctrl-C; the job was cancelled


def run(
    options: JobOptions, source: Address, output: Address, settings: Settings, url: str | None, console: Console
) -> JobView:
    """Run one job to its end and return it; its parts lie in `output` then. Either may lie in a bucket.

    Ctrl-C cancels the job, waits for the worker to hand its shards back, and goes on to the caller.
    Raises OptionError, the errors of `api.cli.serving.service`, and ClientError.
    """
    source, output = checked_paths(source, output)
    model = model_name(options.model or settings.model)
    request = job_request(options, str(source), str(output)).model_copy(update={"model": model})
    folders = (source if isinstance(source, Path) and source.is_dir() else _parent(source), _parent(output))
    if isinstance(output, Path):
        output.parent.mkdir(parents=True, exist_ok=True)
    with service(settings, url, folders, model, console) as running:
        job, elsewhere = submit(running, request, source, console)
        console.print(f"job {job.id}: {job.counts.total:,} rows of {Path(source).name}", highlight=False)
        try:
            job = follow(running.client, job.id, console, running.tick)
        except KeyboardInterrupt:
            console.print("cancelling; rows that are finished are kept", style="yellow")
            cancel(running.client, job.id, running.tick)
            raise
        if elsewhere and isinstance(output, Path) and job.status is not JobStatus.FAILED:
            with transfer("fetching the result", console) as told:
                running.client.download(job.id, output, told=told)
    return job


def submit(running: Service, request: JobRequest, source: Address, console: Console) -> tuple[JobView, bool]:
    """Create the job; True when its result lies with the server and must be fetched.

    A server that is elsewhere, or that may not read the file where it lies, gets it as an upload; what lies in a bucket
    it reads there.
    """
    if isinstance(source, str):
        if not running.local and not is_s3(request.output or ""):
            return running.client.submit(request.model_copy(update={"output": None})), True
        return running.client.submit(request), False
    if is_s3(request.output or "") and not running.local:
        uri = _uploaded(running, source, console)
        return running.client.submit(request.model_copy(update={"input": uri})), False
    if running.local:
        try:
            return running.client.submit(request), False
        except RequestRefused as error:
            if error.problem.code != "dataset_refused" or is_s3(request.output or ""):
                raise
    uri = _uploaded(running, source, console)
    return running.client.submit(request.model_copy(update={"input": uri, "output": None})), True


def _uploaded(running: Service, source: Path, console: Console) -> str:
    if source.is_dir():
        raise OptionError(f"{source}: the server cannot read this folder and only single files can be uploaded")
    with transfer(f"uploading {source.name}", console, source.stat().st_size) as told:
        return running.client.upload(source, told=told).uri


def cancel(client: Client, job_id: str, tick: Callable[[], None]) -> None:
    """Cancel and wait a bounded time until the worker has let go; a job that just ended is fine."""
    deadline = time.monotonic() + CANCEL_SECONDS
    try:
        client.cancel(job_id)
        for job in client.watch(job_id, interval=0.2):
            tick()
            if job.status.terminal or time.monotonic() > deadline:
                return
    except ClientError:
        return


def checked_paths(source: Address, output: Address) -> tuple[Address, Address]:
    """Paths absolute and without links, addresses of buckets as they are. Raises OptionError for an address that no
    bucket can have, an input that is not there or an output in use; what lies in a bucket is for the service to see."""
    if _remote("INPUT", source):
        source = str(source)
    else:
        source = Path(source)
        if not source.exists():
            raise OptionError(f"{source}: no such file or folder")
        source = source.resolve()
    if _remote("--output", output):
        return source, str(output)
    output = Path(output).resolve()
    if output.exists() and not output.is_dir():
        raise OptionError(f"--output {output}: is a file; name a folder")
    if output.is_dir() and any(output.iterdir()):
        raise OptionError(f"--output {output}: the folder is not empty; name another one or empty it")
    return source, output


def _remote(option: str, address: Address) -> bool:
    """Raises OptionError."""
    if isinstance(address, Path) or not (is_s3(address) or "://" in address):
        return False
    fault, _, _ = split(address)
    if fault is not None:
        raise OptionError(f"{option} {without_secrets(address)}: {fault}")
    return True


def _parent(address: Address) -> Address:
    """What a private service must be able to use."""
    if isinstance(address, Path):
        return address.parent
    _, bucket, key = split(address)
    return f"{START}{bucket}/{key.rpartition('/')[0]}".rstrip("/")


def model_name(model: str) -> str:
    """A path made absolute, as the worker has another working directory; any other name as it is."""
    is_path = model_files.is_path(model) or Path(model).is_dir()
    return str(Path(model).expanduser().resolve()) if is_path else model


def report(job: JobView, output: Path | None, console: Console) -> None:
    """What came of the job, where it lies, and why rows failed. Without `output` the parts are not looked into."""
    counts = job.counts
    style = {"completed": "bold green", "completed_with_errors": "bold yellow"}.get(job.status, "bold red")
    console.print(f"[{style}]{job.status.value}[/]: {counts.succeeded:,} of {counts.total:,} rows", highlight=False)
    if job.error is not None:
        console.print(f"{job.error.code}: {job.error.message}", style="red", highlight=False, markup=False)
    if job.elapsed_seconds and counts.done:
        tokens = job.tokens
        console.print(
            f"{duration(job.elapsed_seconds)} · {job.rates.rows_per_second or 0:,.1f} rows/s · "
            f"{job.rates.tokens_per_second or 0:,.0f} tokens/s · "
            f"{tokens.prompt:,} tokens read ({tokens.cached:,} from cache), {tokens.output:,} written",
            highlight=False,
        )
    if counts.failed:
        causes = Counter() if output is None else failures(output, job.spec.output_prefix)
        listed = ", ".join(f"{code} ({number:,})" for code, number in causes.most_common(5))
        console.print(f"{counts.failed:,} rows failed: {listed or 'see their column error'}", style="yellow")
    if output is None or any(output.glob("part-*.parquet")):
        console.print(f"result: {output or job.output}", highlight=False, soft_wrap=True)


def failures(output: Path, prefix: str) -> Counter[str]:
    """How many rows failed, by error code, read from the parts."""
    import pyarrow.parquet as pq  # Imported where used: most runs have no failed row.

    counts: Counter[str] = Counter()
    for path in sorted(output.glob("part-*.parquet")):
        with pq.ParquetFile(path) as part:
            for batch in part.iter_batches(columns=[f"{prefix}error"]):
                counts.update(error["code"] for error in batch.column(0).to_pylist() if error is not None)
    return counts


def exit_status(job: JobView, strict: bool) -> Exit:
    if job.status is JobStatus.COMPLETED_WITH_ERRORS:
        return Exit.ROWS_FAILED if strict else Exit.OK
    return Exit.OK if job.status is JobStatus.COMPLETED else Exit.FAILED
