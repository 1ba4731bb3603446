"""Progress of jobs and of transfers: a bar on a terminal; elsewhere a line about the job now and then."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TaskID, TextColumn, TransferSpeedColumn

from api.client import Client
from api.schemas import JobView
from api.spans import span
from db.models import JobStatus

WINDOW_SECONDS = 15.0
LINE_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Pace:
    """Rows and tokens per second over the last seconds; None: not known yet."""

    rows: float | None
    tokens: float | None


@dataclass(slots=True)
class Meter:
    """Turns the counts of successive polls into a pace."""

    _seen: deque[tuple[float, int, int]] = field(default_factory=deque)

    def pace(self, job: JobView, now: float) -> Pace:
        """Workers report every few seconds, so only a poll whose counts moved counts as one."""
        done, tokens = job.counts.done, job.tokens.prompt + job.tokens.output
        if not self._seen or self._seen[-1][1:] != (done, tokens):
            self._seen.append((now, done, tokens))
        while len(self._seen) > 2 and now - self._seen[1][0] > WINDOW_SECONDS:
            self._seen.popleft()
        first, last = self._seen[0], self._seen[-1]
        seconds = last[0] - first[0]
        if job.status.terminal or seconds <= 0 or last[1] == first[1]:
            return Pace(job.rates.rows_per_second, job.rates.tokens_per_second)
        return Pace((last[1] - first[1]) / seconds, (last[2] - first[2]) / seconds)


@contextmanager
def transfer(text: str, console: Console, total: int | None = None) -> Iterator[Callable[[int], None]]:
    """A bar of bytes for as long as the block lasts; what is given hears of each piece. `total`: bytes, if known."""
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task(text, total=total)
        yield lambda num_bytes: progress.advance(task, num_bytes)


def follow(client: Client, job_id: str, console: Console, tick: Callable[[], None] = lambda: None) -> JobView:
    """Show the job until it has ended; `tick` runs at every poll. Returns the job as it ended."""
    if console.is_terminal:
        return _bar(client, job_id, console, tick)
    return _lines(client, job_id, console, tick)


def _bar(client: Client, job_id: str, console: Console, tick: Callable[[], None]) -> JobView:
    columns = (TextColumn("{task.description}"), BarColumn(bar_width=None), TextColumn("{task.fields[line]}"))
    meter = Meter()
    with Progress(*columns, console=console) as progress:
        task: TaskID = progress.add_task("validating", total=None, line="")
        for job in client.watch(job_id):
            tick()
            progress.update(
                task,
                description=job.status.value,
                total=job.counts.total if job.status is not JobStatus.VALIDATING else None,
                completed=job.counts.done,
                line=describe(job, meter.pace(job, time.monotonic())),
            )
    return job


def _lines(client: Client, job_id: str, console: Console, tick: Callable[[], None]) -> JobView:
    meter = Meter()
    printed_at, status = 0.0, None
    for job in client.watch(job_id):
        tick()
        now = time.monotonic()
        line = describe(job, meter.pace(job, now))
        if job.status is not status or now - printed_at >= LINE_SECONDS:
            console.print(f"{job.status.value}: {line}", highlight=False)
            printed_at, status = now, job.status
    return job


def describe(job: JobView, pace: Pace) -> str:
    """`120/300 rows · 14.2 rows/s · 2,310 tokens/s · 0:13 left, ends 03:10:20–03:10:31 · 2 failed`."""
    parts = [f"{job.counts.done:,}/{job.counts.total:,} rows"]
    if pace.rows:
        parts.append(f"{pace.rows:,.1f} rows/s")
    if pace.tokens:
        parts.append(f"{pace.tokens:,.0f} tokens/s")
    if job.eta_seconds is not None and job.ends is not None:
        parts.append(f"{duration(job.eta_seconds)} left, ends {span(job.ends)}")
    if job.counts.failed:
        parts.append(f"{job.counts.failed:,} failed")
    return " · ".join(parts)


def duration(seconds: float) -> str:
    """`0:13`, `4:05`, `2:03:09`."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
