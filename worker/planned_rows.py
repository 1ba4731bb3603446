"""PlanRows: how many rows of a job will fail, are too long or have equals, from those that were read and computed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from db.plan_results import Interval, PlanRows
from worker.frame import Frame, Seen, Stratum, distinct
from worker.intervals import design_effect, share
from worker.trial import Tried


def planned_rows(frame: Frame, strata: Sequence[Stratum], tried: Tried, asked: float, reuse: bool) -> PlanRows:
    """Of the job. `asked`: so many rows of it can be asked."""
    seen, results = frame.rows, tried.results
    refused = Counter(row.code for row in seen if row.code is not None)
    failed = Counter(result.error[0] for result in results.values() if result.error is not None)
    lost = _times(_share(frame, lambda row: row.code is not None), frame.num_rows)
    too_long = _share(frame, lambda row: row.code == "too_long" or (row.asking is not None and row.asking.too_long))
    broken = _times(_broken(strata, tried), asked)
    answered = [row for row in seen if row.asking is not None]
    return PlanRows(
        total=frame.num_rows,
        read=len(seen),
        sampled=len(results),
        duplicates=len(answered) - len(distinct(answered, reuse)) if frame.whole else None,
        too_long=_times(too_long, frame.num_rows),
        failing=Interval(value=lost.value + broken.value, low=lost.low + broken.low, high=lost.high + broken.high),
        causes={str(code): count for code, count in sorted((refused + failed).items())},
    )


def _share(frame: Frame, has: Callable[[Seen], bool]) -> tuple[float, float, float]:
    """Of the job's rows, from those that were read."""
    runs = [[float(has(row)) for row in run] for run in frame.runs]
    hits, count = round(sum(map(sum, runs))), sum(map(len, runs))
    return share(hits, count, frame.num_rows, design_effect(runs, frame.num_rows))


def _broken(strata: Sequence[Stratum], tried: Tried) -> tuple[float, float, float]:
    """Of the rows that are asked, the share that the engine fails. Strata that were computed whole are known."""
    known, total = 0, sum(row.copies for stratum in strata for row in stratum.rows)
    hits = count = population = left = 0
    for stratum in strata:
        failed = [row for row in stratum.drawn if tried.results[row.index].error is not None]
        if len(stratum.drawn) == len(stratum.rows):
            known += sum(row.copies for row in failed)
            continue
        hits, count, population = hits + len(failed), count + len(stratum.drawn), population + len(stratum.rows)
        left += sum(row.copies for row in stratum.rows)
    value, low, high = ((known + left * each) / max(total, 1) for each in share(hits, count, population))
    return value, low, high


def _times(of: tuple[float, float, float], count: float) -> Interval:
    value, low, high = of
    return Interval(value=value * count, low=low * count, high=high * count)
