"""`nightmill demo`: a real model over a real dataset by the real path, and its answers beside people's."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from importlib.resources import as_file, files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

from api.cli import scores
from api.cli.options import JobOptions, OnLong, RecipeName
from api.cli.run import report
from api.cli.run import run as run_job
from api.schemas import JobView
from db.models import JobStatus
from db.settings import Settings

if TYPE_CHECKING:
    import pyarrow as pa

LEAD_WORDS = 120


class DemoRecipe(StrEnum):
    LABEL = "label"
    SUMMARIZE = "summarize"


DATA = {DemoRecipe.LABEL: "sentiment_tweets_balanced.parquet", DemoRecipe.SUMMARIZE: "summ_aclsum_ccby.parquet"}
# What two cores do in about a minute with the default model.
ROWS = {DemoRecipe.LABEL: 600, DemoRecipe.SUMMARIZE: 20}


def run(
    recipe: DemoRecipe,
    rows: int | None,
    folder: Path,
    min_accuracy: float,
    settings: Settings,
    url: str | None,
    console: Console,
    out: Console,
) -> tuple[JobView, bool]:
    """Run the demo and print what came of it: the job, and False when it failed or was less accurate than wanted."""
    output = folder / f"{recipe.value}-{time.strftime('%Y%m%d-%H%M%S')}"
    options = job_options(recipe, rows or ROWS[recipe])
    with _dataset(recipe) as source:
        console.print(
            f"{recipe.value}: {source.name} (see {source.with_name('NOTICE.md').name} beside it for its licence)"
        )
        job = run_job(options, source, output, settings, url, console)
    report(job, output.resolve(), out)
    if job.status not in (JobStatus.COMPLETED, JobStatus.COMPLETED_WITH_ERRORS):
        return job, False
    table = read(output)
    if recipe is DemoRecipe.SUMMARIZE:
        print_rouge(table, out)
        return job, True
    return job, print_labels(table, min_accuracy, out)


def job_options(recipe: DemoRecipe, rows: int) -> JobOptions:
    """The job as the command line would describe it. The data has a column `label` of its own, hence the prefix."""
    if recipe is DemoRecipe.LABEL:
        return JobOptions(
            recipe=RecipeName.LABEL,
            labels="positive,negative",
            keep_columns="id,text,label",
            output_prefix="model_",
            max_rows=rows,
        )
    return JobOptions(
        recipe=RecipeName.SUMMARIZE,
        keep_columns="id,title,text,summary",
        output_prefix="model_",
        on_long=OnLong.TRUNCATE_MIDDLE,
        max_rows=rows,
    )


def read(output: Path) -> pa.Table:
    """All parts, in the order of their names."""
    import pyarrow as pa  # Imported where used: most commands read no Parquet.
    import pyarrow.parquet as pq

    return pa.concat_tables(pq.read_table(path) for path in sorted(output.glob("part-*.parquet")))


def print_labels(table: pa.Table, min_accuracy: float, out: Console) -> bool:
    """Confusion matrix and accuracy; False when the accuracy is below the bar."""
    columns: dict[str, list[Any]] = table.select(["label", "model_label", "model_confidence"]).to_pydict()
    result = scores.score_labels(columns["label"], columns["model_label"], columns["model_confidence"])
    answers = [*result.labels, *([""] if any(answer == "" for _, answer in result.confusion) else [])]
    matrix = Table("people say", *(f"model says {answer or 'nothing'}" for answer in answers), title="Confusion matrix")
    for truth in result.labels:
        matrix.add_row(truth, *(f"{result.confusion[truth, answer]:,}" for answer in answers))
    out.print(matrix)
    out.print(
        f"mean confidence {result.confidence:.3f}, expected calibration error {result.calibration_error:.3f}\n"
        f"accuracy {result.accuracy:.3f} (always the most frequent label: {result.majority:.3f})",
        highlight=False,
    )
    if result.accuracy < min_accuracy:
        out.print(f"accuracy {result.accuracy:.3f} is below the bar of {min_accuracy:.3f}", style="bold red")
        return False
    return True


def print_rouge(table: pa.Table, out: Console) -> None:
    """ROUGE of the model's summaries beside that of the texts' first words, against the authors' summaries."""
    rows: list[dict[str, Any]] = table.select(["text", "summary", "model_output"]).to_pylist()
    sides = {
        "model": [scores.rouge(row["model_output"] or "", row["summary"]) for row in rows],
        f"first {LEAD_WORDS} words": [
            scores.rouge(scores.lead(row["text"], LEAD_WORDS), row["summary"]) for row in rows
        ],
    }
    names = ("ROUGE-1", "ROUGE-2", "ROUGE-L")
    shown = Table("summary", *names, title=f"F1 over {len(rows)} documents, against people's summaries")
    for side, found in sides.items():
        shown.add_row(side, *(f"{sum(score[name] for score in found) / len(found):.3f}" for name in names))
    out.print(shown)


@contextmanager
def _dataset(recipe: DemoRecipe) -> Iterator[Path]:
    with as_file(files("api") / "demo_data") as folder:
        yield folder / DATA[recipe]
