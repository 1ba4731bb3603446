"""Forecast: from the rows that were read and those that were computed to what the whole job will take."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from db.plan_results import Interval, Limit, Memory, PlanDevice, PlanResult
from db.settings import Settings
from db.specs import JobSpec
from engine.config import EngineConfig
from engine.simulation import Architecture
from worker.course import Course, course_of, donors_of, requests_of, stretched
from worker.duplicates import computed_rows
from worker.elsewhere import elsewhere
from worker.examples import examples_of
from worker.frame import Frame, Seen, Stratum
from worker.intervals import Estimate, clustered_mean, stratified_mean
from worker.planned_rows import planned_rows
from worker.trial import STRETCHES, Speed, Tried

# Standard deviations, relative. Of a machine's speed between the sample and the job: repetitions of one benchmark on
# a quiet machine differ by about so much (docs/claims.md, 4.1). And of what the simulated course leaves out, with which
# the intervals of five jobs hold (docs/claims.md, 8.1).
DRIFT, SIMULATED = 0.05, 0.09
FULL = 0.85  # share of the cache from which on it is what keeps more sequences from running together


@dataclass(frozen=True, slots=True)
class Seat:
    """What the job will run on."""

    config: EngineConfig
    cache_bytes: int
    cache_tokens: int
    workers: int  # of those present, so many have a part in the job
    rows_each: int  # at most
    settings: Settings
    fingerprint: str
    shape: Architecture | None  # of the model; none: it is not known


@dataclass(frozen=True, slots=True)
class Known:
    """What the plan has found out. `learnt` are the prompts that the job's split computes before the first row."""

    spec: JobSpec
    frame: Frame
    strata: Sequence[Stratum]
    tried: Tried
    learnt: Sequence[tuple[int, ...]]
    speed: Speed | None  # none: there was nothing to compute


def forecast(known: Known, seat: Seat, draw: random.Random) -> PlanResult:
    """The plan."""
    frame = known.frame
    answers = answers_of(known.strata, known.tried)
    prompt = _mean(frame, [[row.num_prompt for row in run] for run in frame.runs]).times(frame.num_rows)
    asked = _mean(frame, [[float(row.asking is not None) for row in run] for run in frame.runs]).times(frame.num_rows)
    prompt = prompt.plus(_product(further_prompts_of(known.strata, known.tried), asked))
    output = _product(answers, asked)
    total = prompt.plus(output)
    course, seconds, devices = _time(known, seat, answers, draw)
    price = seat.settings.price_per_hour
    return PlanResult(
        model_fingerprint=seat.fingerprint,
        rows=planned_rows(frame, known.strata, known.tried, asked.value, known.spec.reuse),
        prompt_tokens=_interval(prompt),
        output_tokens=_interval(output),
        total_tokens=_interval(total),
        cached_share=0.0 if course is None else course.cached_share,
        seconds=_interval(seconds),
        workers=seat.workers,
        rows_per_second=frame.num_rows / seconds.value if seconds.value else 0.0,
        tokens_per_second=total.value / seconds.value if seconds.value else 0.0,
        cost=None if price is None else _interval(seconds.times(price * seat.workers / 3600)),
        memory=_memory(known, seat, answers.value),
        **_limit(known, seat, course),
        devices=devices,
        examples=examples_of(known.tried.results),
    )


def answers_of(strata: Sequence[Stratum], tried: Tried) -> Estimate:
    """Mean tokens of all answers to a row that is asked, equal rows included."""
    if not strata:
        return Estimate(0.0)
    bounds = [_bounds(row, tried) for stratum in strata for row in stratum.drawn]
    least, most = min(low for low, _ in bounds), max(high for _, high in bounds)
    return _mean_of(strata, lambda row: float(tried.results[row.index].output_tokens), least, most)


def further_prompts_of(strata: Sequence[Stratum], tried: Tried) -> Estimate:
    """Mean tokens of the prompts that a row that is asked leads to after its first ones: summaries to be summarised,
    which are shorter than what they are made of."""
    if not tried.further:
        return Estimate(0.0)
    most = max(row.num_prompt for stratum in strata for row in stratum.drawn)
    further = tried.further
    return _mean_of(strata, lambda row: float(sum(len(each.prompt) for each in further.get(row.index, ()))), 0, most)


def _mean_of(strata: Sequence[Stratum], value: Callable[[Seen], float], least: float, most: float) -> Estimate:
    """Over the rows that are asked, from a value of those that were computed."""
    return stratified_mean(
        [[value(row) for row in stratum.drawn] for stratum in strata],
        [len(stratum.rows) for stratum in strata],
        least,
        most,
        weights=[[float(row.copies) for row in stratum.drawn] for stratum in strata],
        totals=[float(sum(row.copies for row in stratum.rows)) for stratum in strata],
        chance=any(row.key is None for stratum in strata for row in stratum.drawn),
    )


def _bounds(row: Seen, tried: Tried) -> tuple[int, int]:
    """The fewest and the most tokens that the answers to a row can have."""
    least = most = 0
    for request in tried.asked_for(row):
        lengths = [len(choice) for choice in request.choices]
        fixed = request.sampling.ignore_eos and not request.sampling.stop
        most += max(lengths, default=request.sampling.max_tokens)
        least += min(lengths, default=request.sampling.max_tokens if fixed else max(1, request.sampling.min_tokens))
    return least, most


def _mean(frame: Frame, runs: Sequence[Sequence[float]]) -> Estimate:
    return clustered_mean(runs, frame.num_rows) if frame.rows else Estimate(0.0)


def _product(one: Estimate, other: Estimate) -> Estimate:
    """Of two that were found independently of each other, to first order."""
    first, second = Estimate(0.0, one.error * other.value, one.freedom), Estimate(0.0, other.error * one.value)
    error = first.plus(second)
    return Estimate(one.value * other.value, error.error, error.freedom)


def _time(
    known: Known, seat: Seat, answers: Estimate, draw: random.Random
) -> tuple[Course | None, Estimate, list[PlanDevice]]:
    """Seconds from the submission to the end: simulated with answers as long as the sample's, and once more with longer
    ones, by as much as their mean is uncertain. And what it would take on other devices."""
    rows, speed, host = [row for stratum in known.strata for row in stratum.rows], known.speed, _host(known, seat)
    if speed is None or not rows:
        return None, Estimate(host, DRIFT * host), []
    rows.sort(key=lambda row: row.index)
    donors, tried = donors_of(known.strata, draw), known.tried
    lengths = {row: tried.results[donor].output_tokens for row, donor in donors.items()}
    further = {row: tried.further[donor] for row, donor in donors.items() if donor in tried.further}
    computed = computed_rows(known.frame, known.spec.reuse)
    part = seat.rows_each / known.frame.num_rows
    num_rows, requests = max(1, round(computed.value * part)), requests_of(rows, lengths, further)
    course = course_of(requests, known.learnt, num_rows, seat.config, speed)
    longer = 0.0
    if answers.error and answers.value:
        most = max(_bounds(row, tried)[1] for stratum in known.strata for row in stratum.drawn)
        others = stretched(lengths, 1 + answers.error / answers.value, most)
        longer = course_of(requests_of(rows, others, further), known.learnt, num_rows, seat.config, speed).seconds
    seconds = max(course.seconds, host)
    error = Estimate(seconds, abs(longer - course.seconds) if longer else 0.0, answers.freedom)
    error = error.plus(Estimate(0.0, math.hypot(DRIFT, SIMULATED) * seconds))
    error = error.plus(Estimate(0.0, computed.error / computed.value * seconds))
    error = error.plus(Estimate(0.0, speed.spread / math.sqrt(STRETCHES) * seconds, STRETCHES - 1))
    devices: list[PlanDevice] = []
    if seat.shape is not None:
        whole = max(1, round(computed.value))
        devices = elsewhere(requests, known.learnt, whole, host / part, seat.shape, seat.settings)
    return course, error, devices


def _host(known: Known, seat: Seat) -> float:
    """Seconds that reading, rendering and tokenising takes, which goes on beside the model."""
    return known.frame.seconds / max(len(known.frame.rows), 1) * seat.rows_each


def _interval(estimate: Estimate) -> Interval:
    low, high = estimate.interval()
    return Interval(value=estimate.value, low=low, high=high)


def _memory(known: Known, seat: Seat, answer: float) -> Memory:
    prompts = [len(each.prompt) for row in known.frame.rows if row.asking for each in row.asking.requests]
    sample = [row for stratum in known.strata for row in stratum.drawn]
    each = len(sample) / max(sum(len(known.tried.asked_for(row)) for row in sample), 1)  # of a row's answers
    mean = (sum(prompts) / len(prompts) if prompts else 0.0) + answer * each
    size, token = seat.config.block_size, seat.cache_bytes // max(seat.cache_tokens, 1)
    tokens = max(math.ceil(mean / size), 1) * size
    return Memory(
        bytes_per_token=token,
        bytes_per_sequence=tokens * token,
        cache_bytes=seat.cache_bytes,
        sequences=seat.cache_tokens // tokens,
    )


def _limit(known: Known, seat: Seat, course: Course | None) -> dict[str, object]:
    """`limit` and `shares`."""
    if course is None or known.speed is None:
        return {"limit": "host", "shares": {}}
    step, tokens, sequences, context, attended, rows = known.speed.cost.prices
    work = course.work
    decoded = min(work.rows, work.tokens)
    layers = tokens * work.tokens
    parts: dict[Limit, float] = {
        "weights": step * course.steps,
        "kv_memory": context * work.context + attended * work.attended,
        "prefill_compute": layers * (work.tokens - decoded) / max(work.tokens, 1),
        "decode_compute": layers * decoded / max(work.tokens, 1) + sequences * work.sequences + rows * work.rows,
    }
    whole = sum(parts.values())
    shares = {name: part / whole if whole else 0.0 for name, part in parts.items()}
    host = _host(known, seat)
    shares["host"] = min(host / course.seconds, 1.0) if course.seconds else 1.0
    limit: Limit = max(shares, key=lambda name: shares[name])
    if course.kv_occupancy >= FULL and course.occupancy < FULL:
        limit = "kv_memory"
    return {"limit": limit, "shares": shares}
