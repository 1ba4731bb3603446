"""What a job's files tell: first rows of input beside output, errors by code with examples, lengths of answers.

Read is a bounded piece of the first parts only. A folder that cannot be read shows as nothing, never as an error page.
Every look at a bucket is requests that cost, and the page of a running job looks every few seconds: a bucket is looked
at once the job has ended.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import pyarrow as pa

from db import columns, dead_letters
from db.errors import DomainError
from db.footers import open_parquet
from db.models import Job
from db.specs import JobSpec
from db.stores import Place, S3Path, store_of

MOST_ROWS = 8
MOST_PARTS, MOST_FAILED = 20, 2000
MOST_CHARS = 400
EXAMPLES = 3
BINS = 12


@dataclass(frozen=True, slots=True)
class Pair:
    """Input and answer of a row, as text."""

    given: str
    answer: str
    failed: bool


@dataclass(slots=True)
class ErrorGroup:
    code: str
    num_rows: int = 0
    examples: list[tuple[str, str]] = field(default_factory=list)  # input and message


@dataclass(frozen=True, slots=True)
class Look:
    pairs: list[Pair]
    groups: list[ErrorGroup]
    bounded: bool  # more rows failed than were read
    lengths: list[tuple[str, int]]  # "1–16" tokens -> answers


NOTHING = Look([], [], False, [])


def look(job: Job, output: Place | None) -> Look:
    """`output`: where the job's output lies; None when that may not be read."""
    spec = JobSpec.model_validate(job.spec)
    pairs: list[Pair] = []
    groups: dict[str, ErrorGroup] = {}
    lengths: list[tuple[str, int]] = []
    seen = 0
    if output is None or (isinstance(output, S3Path) and not job.status.terminal):
        return NOTHING
    with suppress(DomainError, OSError, ValueError, KeyError):
        first = next(_parts(output), None)
        if first is not None:
            pairs, lengths = _pairs(first, spec), _lengths(first, spec.output_prefix)
    with suppress(DomainError, OSError, ValueError, KeyError):
        for row in _failed(output / dead_letters.FOLDER):
            seen += 1
            _count(groups, row, spec)
    ordered = sorted(groups.values(), key=lambda group: -group.num_rows)
    return Look(pairs, ordered, seen >= MOST_FAILED, lengths)


def _parts(folder: Place) -> Iterator[Place]:
    """The first ones. A bucket gives its keys in order, a page at a time."""
    if isinstance(folder, S3Path):
        yield from (entry.place for entry in islice(store_of(folder).walk(folder, "part-"), MOST_PARTS))
    else:
        yield from sorted(folder.glob("part-*.parquet"))[:MOST_PARTS]


def _pairs(part: Place, spec: JobSpec) -> list[Pair]:
    with open_parquet(part) as opened:
        file = opened.parquet
        names, prefix = file.schema_arrow.names, spec.output_prefix
        read = [name for name in columns.read_columns(spec) if name in names]
        answer = f"{prefix}label" if f"{prefix}label" in names else f"{prefix}output"
        batch = next(file.iter_batches(MOST_ROWS, columns=[*read, answer, f"{prefix}error"]), None)
    rows: list[dict[str, Any]] = [] if batch is None else batch.to_pylist()
    return [_pair(row, read, answer, row[f"{prefix}error"]) for row in rows]


def _pair(row: dict[str, Any], read: list[str], answer: str, error: dict[str, str] | None) -> Pair:
    given = _text([row[name] for name in read])
    return Pair(given, _cut(error["code"]) if error else _cut(str(row[answer])), error is not None)


def _text(values: list[Any]) -> str:
    return _cut(" · ".join("" if value is None else str(value) for value in values))


def _cut(text: str) -> str:
    return text if len(text) <= MOST_CHARS else text[:MOST_CHARS] + "…"


def _failed(folder: Place) -> Iterator[dict[str, Any]]:
    left = MOST_FAILED
    for part in _parts(folder):
        with open_parquet(part) as opened:
            for batch in opened.parquet.iter_batches(256):
                yield from (rows := batch.slice(0, left).to_pylist())
                left -= len(rows)
                if left <= 0:
                    return


def _count(groups: dict[str, ErrorGroup], row: dict[str, Any], spec: JobSpec) -> None:
    error = row.get(columns.DEAD_LETTER_ERROR) or {"code": "unknown", "message": ""}
    group = groups.setdefault(error["code"], ErrorGroup(error["code"]))
    group.num_rows += 1
    if len(group.examples) < EXAMPLES:
        values = [row.get(name) for name in columns.read_columns(spec)]
        group.examples.append((_text(values) or "(empty)", _cut(error["message"])))


def _lengths(part: Place, prefix: str) -> list[tuple[str, int]]:
    """How many answers of the first part have how many tokens, in bins of equal width."""
    with open_parquet(part) as opened:
        table: pa.Table = opened.parquet.read(columns=[f"{prefix}output_tokens"])
    tokens = [int(value) for value in table.column(0).to_pylist() if value]
    if not tokens:
        return []
    least, most = min(tokens), max(tokens)
    width = -(-(most - least + 1) // BINS)
    counts = [0] * ((most - least) // width + 1)
    for value in tokens:
        counts[(value - least) // width] += 1
    starts = range(least, most + 1, width)
    names = (str(start) if width == 1 else f"{start}–{start + width - 1}" for start in starts)
    return list(zip(names, counts, strict=True))
