"""Samples: texts taken evenly from the input, for what a recipe must learn about a job before the first row runs."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeAlias

from db import parquet
from db.datasets import Dataset
from db.stores import Place
from engine.errors import EngineError
from engine.request import Output, Request
from worker.cells import read_rows
from worker.plans import Plan
from worker.recipes import Row, RowRefused

Run: TypeAlias = Callable[[Iterator[Request]], Iterable[Output]]  # by an engine, in any order
WHOLE_ROWS = 32_768  # inputs up to this size are read through
RUN_ROWS = 8  # of larger ones, runs of rows: reaching a row costs decoding its row group up to it


class ScoreFailed(EngineError):
    """The engine gave no log-probabilities for a text of the sample."""

    code = "score_failed"


def picks(num_rows: int, num_samples: int) -> tuple[list[tuple[int, int]], frozenset[int]]:
    """Row ranges to read, and the rows to take of them: `num_samples` (at most all), evenly spread."""
    if num_rows <= WHOLE_ROWS:
        return [(0, num_rows)], frozenset(index * num_rows // num_samples for index in range(num_samples))
    num_runs = max(1, num_samples // RUN_ROWS)
    starts = [run * num_rows // num_runs for run in range(num_runs)]
    return [(start, start + RUN_ROWS) for start in starts], frozenset(s + i for s in starts for i in range(RUN_ROWS))


def texts(dataset: Dataset, num_rows: int, plan: Plan) -> list[str]:
    """Texts of valid rows among the first `num_rows`; rows that will be error rows are left out."""
    if not (plan.recipe.sample_rows and num_rows):
        return []
    ranges, wanted = picks(num_rows, plan.recipe.sample_rows)
    found = []
    for start, stop in ranges:
        for index, row in enumerate(rows_between(dataset, start, stop, plan.layout.read), start):
            if index in wanted and not isinstance(row, RowRefused):
                with contextlib.suppress(RowRefused):
                    text = plan.maker.text(row)
                    plan.maker.prompt(row, text)
                    found.append(text)
    return found


def rows_between(dataset: Dataset, start: int, stop: int, columns: Sequence[str]) -> Iterator[Row | RowRefused]:
    """The rows [start, stop) of a dataset, with these columns."""
    for file, low, high in _in_files(dataset, start, stop):
        constants = dataset.partitions.values(file)
        for batch in parquet.read(file, low, high, list(columns), constants=constants):
            yield from read_rows(batch, columns)


def _in_files(dataset: Dataset, start: int, stop: int) -> Iterator[tuple[Place, int, int]]:
    """The rows [start, stop) of a dataset as row ranges of its files."""
    first = 0
    for file in dataset.files:
        low, high = max(start - first, 0), min(stop - first, file.num_rows)
        if low < high:
            yield file.path, low, high
        first += file.num_rows


def learn(dataset: Dataset, num_rows: int, plan: Plan, run: Run) -> dict[str, object]:
    """What all rows must know alike (see Recipe.prepare), from the first `num_rows`. Raises ScoreFailed."""
    return plan.recipe.prepare(texts(dataset, num_rows, plan), lambda chosen: score(chosen, plan, run))


def score(texts: Sequence[str], plan: Plan, run: Run) -> list[tuple[float, ...]]:
    """The log-probabilities of the recipe's choices as the answer to each text."""
    requests = (plan.maker.ask(index, plan.maker.prompt({}, text).tokens) for index, text in enumerate(texts))
    answers: dict[object, tuple[float, ...]] = {}
    for output in run(requests):
        if output.choice_logprobs is None:
            raise ScoreFailed(output.error or f"the request ended as {output.finish_reason}")
        answers[output.id] = output.choice_logprobs
    return [answers[index] for index in range(len(texts))]
