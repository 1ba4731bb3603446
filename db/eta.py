"""When a job will end, from how far it was at some moments: an estimate, and an interval of 80 % around it.

What a row costs is taken to follow partly from its being a row and partly from the length of its input, which is known
of the rows that are left. Between two moments a job got on by so many rows of all its rows, and by so many bytes of all
its bytes; its work is a mixture of these shares, and which one is left open: each mixture counts by how evenly the job
got on by it. With a share d of the work done and w left, the time left is w times the time per work so far, and a piece
of work having a variance in proportion to it, that of the time left is

    s^2 w (1 + w / d)

with s^2 from stretches of the time so far (a ratio estimate's, Cochran 1977, 6.3, for what is left of a whole). Rows
that are in the engine are partly computed, nobody knows how far. To that come what a machine's speed drifts by, and
what a job has to do beside its rows. `python -m tests.bench.eta` measures how often the intervals hold.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from db.quantiles import quantile

STRETCHES = 8
MIXTURES = (0.0, 0.25, 0.5, 0.75, 1.0)  # shares of bytes in what work is
# Before anything is known of a job: the standard deviation, relative, of the time that a stretch takes, and how many
# observations that is worth.
PRIOR_SPREAD, PRIOR_WEIGHT = 0.2, 2.0
DRIFT = 0.05  # of a machine's speed, relative standard deviation: as in plans (worker.forecast)
# Of the rows in the engine: how much is computed, on average, and its standard deviation. One that may be anywhere with
# equal chances gives a half and 0.29; those that do not begin together are nearer to a half.
BEGUN, BEGUN_SPREAD = 0.5, 0.2
# From where a course begins to the first row in the engine, in seconds: model, recipe and file are opened.
START_SECONDS, START_SPREAD = 1.0, 0.7
# From the last row to the job's end, in seconds: the part, a message, the manifest.
END_SECONDS, END_SPREAD = 0.5, 0.5
HORIZON_SECONDS = 100 * 365.25 * 86_400  # an end that may be later is not known, nor does every date exist


@dataclass(frozen=True, slots=True)
class Milestone:
    """How far a job was, in seconds since 1970: rows done, and bytes of their input (0: not known)."""

    at: float
    rows: float
    bytes: float = 0.0


@dataclass(frozen=True, slots=True)
class End:
    """Seconds since 1970. The true end lies between the last two in eight of ten cases."""

    at: float
    earliest: float
    latest: float


def end_of(course: Sequence[Milestone], num_rows: int, num_bytes: int, now: float, in_flight: float) -> End | None:
    """When a job of so many rows and bytes of input ends. None: it has not got on yet, or so little that a
    century may not be enough.

    `course` is in the order of time and begins when its first shard was begun, or when it was resumed; `in_flight` of
    its rows are in engines now.
    """
    course = _moving(course)
    if len(course) < 2:
        return None
    mixtures = MIXTURES if num_bytes else MIXTURES[:1]
    found = [_left(course, share, num_rows, num_bytes, in_flight) for share in mixtures]
    best = max(each.evidence for each in found)
    weights = [math.exp(each.evidence - best) for each in found]
    parts = [(weight / sum(weights), each) for weight, each in zip(weights, found, strict=True)]
    seconds = sum(weight * each.seconds for weight, each in parts)
    variance = sum(weight * (each.variance + (each.seconds - seconds) ** 2) for weight, each in parts)
    variance += (DRIFT * seconds) ** 2 + END_SPREAD**2
    seconds += END_SECONDS
    # A time is positive, and twice as long as likely as half as long: its logarithm is what is spread evenly.
    half = quantile(found[0].freedom) * math.sqrt(math.log1p(variance / seconds**2))
    times = (seconds, seconds * math.exp(-half), seconds * math.exp(half))
    end = End(*(max(course[-1].at + time, now) for time in times))
    return end if end.latest <= now + HORIZON_SECONDS else None


def _moving(course: Sequence[Milestone]) -> list[Milestone]:
    """Those at which more was done than at any before: a shard that was given back takes its rows along for a while."""
    found: list[Milestone] = []
    for milestone in course:
        if not found or (milestone.rows > found[-1].rows and milestone.at > found[-1].at):
            found.append(milestone)
    return found


@dataclass(frozen=True, slots=True)
class _Left:
    seconds: float
    variance: float
    freedom: float
    evidence: float  # logarithm of how well the mixture explains the times, up to a constant


def _left(course: Sequence[Milestone], share: float, num_rows: int, num_bytes: int, in_flight: float) -> _Left:
    """By a mixture of which so much is bytes."""

    def work(milestone: Milestone) -> float:
        return (1 - share) * milestone.rows / num_rows + (share * milestone.bytes / num_bytes if share else 0.0)

    first, last = course[0], course[-1]
    left = max(1 - work(last), 0.0)
    flying = min(in_flight / max(num_rows - last.rows, 1.0), 1.0) * left
    begun = BEGUN * flying
    done, left = max(work(last) - work(first) + begun, 1e-9), left - begun
    elapsed = last.at - first.at
    pace = max(elapsed - START_SECONDS, elapsed / 2) / done
    bounds = _bounds(course)
    squares = logs = 0.0
    for start, stop in pairwise(bounds):
        # At the first bound nothing was in the engine yet, at all others about as much as now.
        part = max(work(stop) - work(start) + (begun if start is first else 0.0), 1e-9)
        squares += (stop.at - start.at - pace * part) ** 2 / part
        logs += math.log(part)
    count = len(bounds) - 1
    freedom = PRIOR_WEIGHT + count - 1
    spread = (PRIOR_WEIGHT * (PRIOR_SPREAD * pace) ** 2 * done / count + squares) / freedom
    unsure = (BEGUN_SPREAD * flying * pace * (1 + left / done)) ** 2 + (START_SPREAD * left / done) ** 2
    variance = spread * left * (1 + left / done) + unsure
    return _Left(pace * left, variance, freedom, -0.5 * (freedom * math.log(spread) + logs))


def _bounds(course: Sequence[Milestone]) -> list[Milestone]:
    """All, or those that cut the time into about as many stretches as STRETCHES, equally long ones."""
    first, last = course[0], course[-1]
    length = (last.at - first.at) / STRETCHES
    found = [first]
    for milestone in course[1:-1]:
        if len(course) <= STRETCHES + 1 or (milestone.at - first.at) // length > (found[-1].at - first.at) // length:
            found.append(milestone)
    return [*found, last]
