"""Plans against what came of them: five different jobs over real texts, each planned from 64 rows and then run.

    python -m tests.bench.plan [--dtype int8] [--rows N] [--jobs label,extract,…]

The service is what `nightmill up` starts. For every job: its tokens and its time from submission to end, the plan's
estimate, how far that is off, and whether the plan's 80 % interval holds the true value. Exits 1 when a job's tokens
are off by more than 10 % or its time by more than 25 %, or fewer than eight tenths of the intervals hold. `--rows`
takes the first rows of every input alone. Prints what falls short, or the worst of both, last.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from rich.console import Console
from rich.table import Table

from api.client import Client
from api.schemas import JobView
from db.model_files import find
from db.plan_results import Interval, PlanResult
from db.settings import Settings
from tests.bench.service import ROOT, service

BENCH, DEMO = ROOT / "tests" / "bench" / "data", ROOT / "api" / "demo_data"
MOST_TOKENS_OFF, MOST_TIME_OFF, LEAST_HELD = 0.10, 0.25, 0.8
SAMPLE = 64
ASKED = {  # one prompt for each kind of request
    "get_weather": "A weather service got the following question. Name the place and the day that it is about.",
    "book_restaurant": "A waiter gets this request. Say in one sentence what has to be reserved, and for how many.",
    "play_music": "The request below was spoken to a music player. Which artist, album or song is wanted?",
    "rate_book": "A library keeps ratings. From the words below, write down the book and the number of points.",
}
OTHER = "Somebody says the following to an assistant. Say in a few words what the assistant should do now."


@dataclass(frozen=True, slots=True)
class Job:
    table: Callable[[], pa.Table]
    recipe: dict[str, Any]
    max_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class Seen:
    """A job's plan, and what came of it: tokens and seconds."""

    name: str
    plan: PlanResult
    tokens: int
    seconds: float

    @property
    def figures(self) -> tuple[tuple[str, Interval, float, float], ...]:
        """Name, estimate, true value, and the most that it may be off."""
        return (
            ("tokens", self.plan.total_tokens, self.tokens, MOST_TOKENS_OFF),
            ("seconds", self.plan.seconds, self.seconds, MOST_TIME_OFF),
        )


def tweets(rows: int) -> pa.Table:
    return pq.read_table(DEMO / "sentiment_tweets_balanced.parquet", columns=["text"]).slice(0, rows)


def sections() -> pa.Table:
    """The introductions of 109 papers, each cut into three at the end of a word."""
    found = []
    for text in pq.read_table(DEMO / "summ_aclsum_ccby.parquet", columns=["text"])["text"].to_pylist():
        words = text.split(" ")
        found += [" ".join(words[part * len(words) // 3 : (part + 1) * len(words) // 3]) for part in range(3)]
    return pa.table({"text": found})


def template() -> str:
    """A prompt for each label that ASKED names, and one for the others, before the row's own text."""
    cases = "".join(
        f"{{% {'if' if place == 0 else 'elif'} label == '{label}' %}}{words}"
        for place, (label, words) in enumerate(ASKED.items())
    )
    return cases + f"{{% else %}}{OTHER}{{% endif %}} {{{{ text }}}}"


JOBS = {
    "label": Job(lambda: tweets(800), {"kind": "label", "labels": ["positive", "negative"], "calibration": "batch"}),
    "summarize": Job(sections, {"kind": "summarize"}, 96),
    "extract": Job(
        lambda: pq.read_table(BENCH / "extract_bfcl.parquet", columns=["text", "schema"]),
        {"kind": "extract", "schema_column": "schema"},
        96,
    ),
    "generate": Job(
        lambda: tweets(500),
        {"kind": "generate", "template": "Write an answer to this message: {{ text }}", "system": "You are kind."},
        64,
    ),
    "prompts": Job(
        lambda: pq.read_table(BENCH / "intent_693.parquet", columns=["text", "label"]),
        {"kind": "generate", "template": template()},
        32,
    ),
}


def measure(client: Client, name: str, folder: Path, rows: int | None) -> Seen:
    job, source = JOBS[name], folder / f"{name}.parquet"
    pq.write_table(job.table().slice(0, rows), source)
    request = {"input": client.upload(source).uri, "recipe": job.recipe}
    if job.max_tokens is not None:
        request["sampling"] = {"max_tokens": job.max_tokens}
    plan = client.plan(request, sample_rows=SAMPLE)
    assert plan.result is not None, f"the plan of {name} failed: {plan.error}"
    done = client.wait(client.submit(request).id, interval=1.0)
    assert done.status.value.startswith("completed"), f"{name} ended as {done.status}: {done.error}"
    return Seen(name, plan.result, done.tokens.prompt + done.tokens.output, seconds(done))


def seconds(job: JobView) -> float:
    assert job.finished_at is not None, "the job has ended"
    return (job.finished_at - job.created_at).total_seconds()


def off(interval: Interval, true: float) -> float:
    return interval.value / true - 1


def holds(interval: Interval, true: float) -> bool:
    # A plan that has counted every token says a whole number.
    return interval.low - 0.5 <= true <= interval.high + 0.5


def show(seen: list[Seen], console: Console) -> None:
    table = Table("job", "rows", "figure", "planned", "80 % interval", "true", "off", "holds", "limit")
    for each in seen:
        for name, interval, true, _ in each.figures:
            table.add_row(
                each.name,
                f"{each.plan.rows.total}",
                name,
                f"{interval.value:,.1f}",
                f"{interval.low:,.1f} to {interval.high:,.1f}",
                f"{true:,.1f}",
                f"{off(interval, true):+.1%}",
                "yes" if holds(interval, true) else "no",
                each.plan.limit,
            )
    console.print(table)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dtype", default="int8")
    parser.add_argument("--rows", type=int)
    parser.add_argument("--jobs", default=",".join(JOBS))
    parser.add_argument("--threads", type=int)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with service(folder / "home", find("smollm2-135m", Settings()), given.dtype, given.threads) as (client, _):
            seen = [measure(client, job, folder, given.rows) for job in given.jobs.split(",")]
    show(seen, Console(soft_wrap=True, highlight=False))
    figures = [figure for each in seen for figure in each.figures]
    held = sum(holds(interval, true) for _, interval, true, _ in figures)
    wrong = [name for name, interval, true, most in figures if abs(off(interval, true)) > most]
    worst = {
        kind: max(abs(off(interval, true)) for name, interval, true, _ in figures if name == kind)
        for kind in ("tokens", "seconds")
    }
    print(
        f"tokens off by {worst['tokens']:.1%} at worst, time by {worst['seconds']:.1%}; "
        f"{held} of {len(figures)} intervals hold the true value"
    )
    return int(bool(wrong) or held < LEAST_HELD * len(figures))


if __name__ == "__main__":
    sys.exit(main())
