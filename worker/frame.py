"""Frame: the rows that a plan looks at, rendered and tokenised as the job's own, and those of them that it computes.

A small input is read whole. Of a larger one, runs of neighbouring rows are, one in every stretch of equal length:
reaching a row costs decoding its row group up to it, and neighbours share what a job's neighbours share.
"""

from __future__ import annotations

import hashlib
import itertools
import random
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from db.datasets import Dataset
from worker.plans import Plan
from worker.recipes import Row, RowRefused
from worker.rows import Asking
from worker.samples import rows_between
from worker.twins import key_of

MOST_ROWS = 2048
RUN_ROWS = 64
MOST_TOKENS = 1 << 21  # of all prompts together: what bounds the memory
STRATA = 8


@dataclass(frozen=True, slots=True)
class Seen:
    """A row that was read. `asking` is None where it cannot be asked, and `code` says why."""

    index: int  # in the job
    asking: Asking | None
    code: str | None
    key: bytes | None  # the same for rows that must have the same answer; None: of rows left to chance
    copies: int = 1  # of what is computed: the rows of the frame that have its answer

    @property
    def num_prompt(self) -> int:
        """Tokens of the prompts that the row begins with, as a job counts them."""
        return 0 if self.asking is None else self.asking.num_prompt


@dataclass(frozen=True, slots=True)
class Frame:
    """`runs` are in the input's order; of a whole one there is one."""

    runs: tuple[tuple[Seen, ...], ...]
    num_rows: int  # of the job
    seconds: float  # that reading, rendering and tokenising took

    @property
    def rows(self) -> tuple[Seen, ...]:
        return tuple(row for run in self.runs for row in run)

    @property
    def whole(self) -> bool:
        return sum(map(len, self.runs)) == self.num_rows


@dataclass(frozen=True, slots=True)
class Stratum:
    """Rows of the frame of like length, and those drawn from them."""

    rows: tuple[Seen, ...]
    drawn: tuple[Seen, ...]


def runs_of(num_rows: int, draw: random.Random) -> list[tuple[int, int]]:
    """Ranges of rows to read, in an order in which stopping early leaves a fair choice."""
    if num_rows <= MOST_ROWS:
        ranges = [(start, min(start + RUN_ROWS, num_rows)) for start in range(0, num_rows, RUN_ROWS)]
    else:
        count = MOST_ROWS // RUN_ROWS
        edges = [part * num_rows // count for part in range(count + 1)]
        starts = [draw.randint(low, high - RUN_ROWS) for low, high in itertools.pairwise(edges)]
        ranges = [(start, start + RUN_ROWS) for start in starts]
    draw.shuffle(ranges)
    return ranges


def look(dataset: Dataset, num_rows: int, made: Plan, draw: random.Random, go_on: Callable[[], None]) -> Frame:
    """Read, render and tokenise. `go_on` raises Stopped when the plan should not go on."""
    began, runs, tokens = time.perf_counter(), [], 0
    for start, stop in runs_of(num_rows, draw):
        go_on()
        if tokens > MOST_TOKENS:
            break
        run = []
        for index, row in enumerate(rows_between(dataset, start, stop, made.layout.read), start):
            run.append(_seen(index, row, made))
            tokens += run[-1].num_prompt
            if tokens > MOST_TOKENS:  # a row may have a thousand prompts: the run ends here
                break
        runs.append(tuple(run))
    runs.sort(key=lambda run: run[0].index)
    return Frame(tuple(runs), num_rows, time.perf_counter() - began)


def _seen(index: int, row: Row | RowRefused, made: Plan) -> Seen:
    if isinstance(row, RowRefused):
        return Seen(index, None, row.code, None)
    try:
        asking = made.maker.asking(index, row, made.maker.text(row))
    except RowRefused as refusal:
        return Seen(index, None, refusal.code, None)
    keys = [key_of(request, b"") for request in asking.requests]
    key = None if None in keys else hashlib.blake2b(b"".join(keys), digest_size=16).digest()  # type: ignore[arg-type]
    return Seen(index, asking, None, key)


def distinct(rows: Sequence[Seen], reuse: bool) -> list[Seen]:
    """The rows that the engine will be asked for: of equal ones the first, unless each is computed."""
    asked = [row for row in rows if row.asking is not None]
    if not reuse:
        return asked
    copies = Counter(row.key for row in asked if row.key is not None)
    firsts: dict[bytes | int, Seen] = {}
    for row in asked:
        firsts.setdefault(row.index if row.key is None else row.key, row)
    return [row if row.key is None else replace(row, copies=copies[row.key]) for row in firsts.values()]


def strata_of(rows: Sequence[Seen], num_sample: int, draw: random.Random) -> list[Stratum]:
    """Rows cut into strata by the length of their prompts, and `num_sample` of them (at most all) drawn from these in
    equal parts. A stratum has at least two rows of the sample, where there are so many. Before them comes one of the
    rows that have so many equals that nothing may be left to chance; all of them are drawn."""
    num_sample = min(num_sample, len(rows))
    most = 2 * sum(row.copies for row in rows) / max(num_sample, 1)
    common = tuple(row for row in rows if row.copies > max(most, 1))
    by_length = sorted((row for row in rows if row.copies <= max(most, 1)), key=lambda row: (row.num_prompt, row.index))
    num_sample -= len(common)
    count = max(1, min(STRATA, num_sample // 2))
    strata = [Stratum(common, common)] if common else []
    for part in range(count):
        inside = by_length[part * len(by_length) // count : (part + 1) * len(by_length) // count]
        wanted = (part + 1) * num_sample // count - part * num_sample // count
        drawn = draw.sample(inside, min(wanted, len(inside)))
        if inside:
            strata.append(Stratum(tuple(inside), tuple(sorted(drawn, key=lambda row: row.index))))
    return strata
