"""How often a job's true end lies in the interval that was shown while it ran: 80 % of the time, if that is honest.

    python -m tests.bench.eta [--simulated 60] [--jobs label,…] [--repetitions 2] [--dtype int8]
        [--threads N]

Jobs of the real model on this machine, through the service as `nightmill up` starts it: labels, short and long answers,
inputs as they come and in order of their length. Each is asked for every second. Beside them, jobs of minutes to hours
under the simulator's clock: their lengths are skewed and lie in the input mixed, sorted, or in runs of like ones, on a
machine whose speed wanders; milestones of these are made as workers and sweeps would.

Prints, by job, the share of moments at which the true end lay within the interval, and how wide that was, a median over
each quarter of the job's time. Exits 1 when the mean over the jobs of either kind lies outside 70 to 90 %. `--simulated
0` and `--jobs ''` leave a kind out. Prints both shares last.
"""

from __future__ import annotations

import argparse
import itertools
import math
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from api.client import Client
from api.schemas import JobView
from db import samples
from db.eta import END_SECONDS, START_SECONDS, Milestone, end_of
from db.model_files import find
from db.settings import Settings
from engine.config import EngineConfig
from engine.simulation import SimulatedRequest, Work, simulate
from tests.bench.plan import JOBS as KINDS
from tests.bench.service import service

LEAST, MOST = 0.7, 0.9
REPORT_SECONDS = 2.0  # between two reports of a worker, and two sweeps
SHARD_ROWS = 100
FIRST = 1000  # number of the first simulated job: the constants of db.eta were chosen on those from 0 on


@dataclass(frozen=True, slots=True)
class Moment:
    """A share of the job's time, whether the true end lay within the interval shown then, and the interval's width over
    the time that was truly left."""

    share: float
    held: bool
    width: float


@dataclass(frozen=True, slots=True)
class Watched:
    name: str
    seconds: float
    moments: Sequence[Moment]

    @property
    def held(self) -> float:
        return statistics.fmean(moment.held for moment in self.moments)

    def line(self) -> str:
        if not self.moments:
            return f"{self.name}: {self.seconds:,.0f} s, over before anything was shown"
        widths = []
        for quarter in range(4):
            found = [each.width for each in self.moments if quarter <= each.share * 4 < quarter + 1]
            widths.append(f"{statistics.median(found):.0%}" if found else "–")
        shown = f"{self.held:.0%} of {len(self.moments)} moments"
        return f"{self.name}: {self.seconds:,.0f} s, {shown}, width by quarters {', '.join(widths)} of the time left"


def moment(began: float, now: float, true: float, earliest: float, latest: float) -> Moment:
    return Moment((now - began) / (true - began), earliest <= true <= latest, (latest - earliest) / (true - now))


# -- under the simulator's clock ---------------------------------------------------------------------------------------


class WanderingCost:
    """Prices of an int8 model of 135 million parameters on one core, on a machine whose speed wanders about its mean by
    a twentieth within minutes (an Ornstein-Uhlenbeck process), and whose steps differ by a tenth."""

    def __init__(self, draw: random.Random) -> None:
        self._draw, self._drift = draw, 0.0

    def seconds(self, work: Work, steps: int = 1) -> float:
        plain = 0.008 * steps + 0.0007 * work.tokens + 1.5e-6 * work.context
        keep = math.exp(-plain / 120.0)
        self._drift = keep * self._drift + self._draw.gauss(0.0, 0.05) * (1 - keep**2) ** 0.5
        return plain * max(0.2, 1 + self._drift + self._draw.gauss(0.0, 0.1))


def lengths(draw: random.Random) -> list[tuple[int, int]]:
    """Prompt and answer of each row of a job: skewed, and in one of several orders."""
    count, skew = round(draw.lognormvariate(7.0, 0.8)), draw.choice((0.3, 0.6, 1.0))
    prompt, answer, most = draw.uniform(30, 400), draw.uniform(4, 120), draw.choice((64, 128, 256))
    follows = draw.choice((0.0, 0.0, 1.0))  # whether long texts have long answers
    order = draw.choice(("mixed", "mixed", "sorted", "falling", "runs"))
    rows = []
    for row in range(max(count, 150)):
        about = 1.0 + (0.8 * draw.random() if order == "runs" and row % 200 == 0 else 0.0)
        text = draw.lognormvariate(-(skew**2) / 2, skew)
        length = answer * about * text**follows * draw.lognormvariate(-0.18, 0.6)
        rows.append((min(max(8, round(prompt * text)), 4000), min(max(1, round(length)), most)))
    if order in ("sorted", "falling"):
        rows.sort(reverse=order == "falling")
    return rows


def simulated(number: int) -> Watched:
    draw = random.Random(number)
    rows = lengths(draw)
    requests = (SimulatedRequest.of_lengths(row, *each) for row, each in enumerate(rows))
    config = EngineConfig(max_sequences=draw.choice((16, 64)), num_blocks=20_000, max_model_len=8192)
    ends = [START_SECONDS + end for end in simulate(requests, config, WanderingCost(draw), jumps=False).ends]
    true, size = max(ends) + END_SECONDS, sum(prompt for prompt, _ in rows)
    course, moments = [Milestone(0.0, 0.0)], []
    for milestone in reports(rows, ends):
        now, in_flight = milestone.at, min(config.max_sequences, len(rows) - milestone.rows)
        end = end_of([*course, milestone], len(rows), size, now, in_flight)
        if end is not None and now < true:
            moments.append(moment(0.0, now, true, end.earliest, end.latest))
        if now - course[-1].at >= max(samples.LEAST_SECONDS, now * samples.SHARE):
            course.append(milestone)
    return Watched(f"simulated {number}, {len(rows):,} rows", true, moments)


def reports(rows: Sequence[tuple[int, int]], ends: Sequence[float]) -> Iterator[Milestone]:
    """What the ledger knows, report by report: the rows that have ended; bytes by shards, of those that are not done in
    proportion to their rows."""
    order = sorted(range(len(rows)), key=lambda row: ends[row])
    shards = [rows[first : first + SHARD_ROWS] for first in range(0, len(rows), SHARD_ROWS)]
    per_row = [sum(prompt for prompt, _ in shard) / len(shard) for shard in shards]
    size, done = 0.0, 0
    for tick in itertools.count(1):
        while done < len(order) and ends[order[done]] <= tick * REPORT_SECONDS:
            size += per_row[order[done] // SHARD_ROWS]
            done += 1
        yield Milestone(tick * REPORT_SECONDS, done, size)
        if done == len(order):
            return


# -- on this machine ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Job:
    """Rows of a kind of tests.bench.plan, numbered so that no two are alike; `order`: by the lengths of the texts, from
    short to long (1), from long to short (-1), or as they come (0)."""

    kind: str
    rows: int
    max_tokens: int | None = None
    order: int = 0


JOBS = {
    "label": Job("label", 1600),
    "label_falling": Job("label", 1600, order=-1),
    "short": Job("generate", 1000, 24),
    "long": Job("generate", 600, 64),
    "long_sorted": Job("generate", 600, 64, order=1),
    "prompts": Job("prompts", 1200, 32),
    "summarize": Job("summarize", 250, 48),
}


def watch(client: Client, name: str, folder: Path) -> Watched:
    job, source = JOBS[name], folder / f"{name}.parquet"
    kind = KINDS[job.kind]
    table = kind.table()
    table = pa.concat_tables([table] * math.ceil(job.rows / table.num_rows)).slice(0, job.rows)
    texts = [f"{row}: {text}" for row, text in enumerate(table["text"].to_pylist())]
    table = table.set_column(table.column_names.index("text"), "text", pa.array(texts))
    order = sorted(range(job.rows), key=lambda row: len(texts[row]) * job.order)
    pq.write_table(table.take(order), source)
    request = {"input": client.upload(source).uri, "recipe": kind.recipe, "shard_rows": SHARD_ROWS, "reuse": False}
    if job.max_tokens is not None:
        request["sampling"] = {"max_tokens": job.max_tokens}
    view, shown = client.submit(request), list[tuple[float, float, float]]()
    while not view.status.terminal:
        if view.ends is not None:
            shown.append((time.time(), view.ends.earliest.timestamp(), view.ends.latest.timestamp()))
        time.sleep(1.0)
        view = client.get(view.id)
    assert view.status.value.startswith("completed"), f"{name} ended as {view.status}: {view.error}"
    began, true = times(view)
    moments = [moment(began, now, true, low, high) for now, low, high in shown if now < true]
    return Watched(f"{name}, {view.counts.total:,} rows", true - began, moments)


def times(view: JobView) -> tuple[float, float]:
    assert view.running_at is not None, "the job has run"
    assert view.finished_at is not None, "the job has ended"
    return view.running_at.timestamp(), view.finished_at.timestamp()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--simulated", type=int, default=60)
    parser.add_argument("--jobs", default=",".join(JOBS))
    parser.add_argument("--repetitions", type=int, default=2)
    parser.add_argument("--dtype", default="int8")
    parser.add_argument("--threads", type=int)
    given = parser.parse_args()
    seen: dict[str, list[Watched]] = {"real": [], "simulated": []}
    if given.jobs:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            with service(folder / "home", find("smollm2-135m", Settings()), given.dtype, given.threads) as (client, _):
                for job in given.jobs.split(",") * given.repetitions:
                    seen["real"].append(watch(client, job, folder))
                    print(seen["real"][-1].line(), flush=True)
    for number in range(FIRST, FIRST + given.simulated):
        seen["simulated"].append(simulated(number))
        print(seen["simulated"][-1].line(), flush=True)
    held = {kind: statistics.fmean(each.held for each in jobs if each.moments) for kind, jobs in seen.items() if jobs}
    print(
        "the true end was in the interval at "
        + ", ".join(f"{share:.0%} of moments ({kind} jobs)" for kind, share in held.items())
    )
    return int(not all(LEAST <= share <= MOST for share in held.values()))


if __name__ == "__main__":
    sys.exit(main())
