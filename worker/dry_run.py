"""plan: a dry run is taken up, its rows are looked at and some computed, and what the job will take is written down."""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Callable, Iterator, Sequence

import structlog

from db import columns, datasets, dry_runs, model_files, tenants
from db.datasets import Dataset
from db.dry_runs import DryRun
from db.errors import DomainError, InvalidDataset, ModelMissing
from db.files import resolve_input
from db.plan_results import PlanResult
from db.plans import plan_shards
from db.settings import Settings
from db.shards import Beat
from db.specs import JobSpec
from db.workers import PRESENT_SWEEPS, workers
from engine.errors import EngineError, ModelError
from engine.models.load import read_config
from engine.request import Request
from engine.simulation import Architecture, FittedCost, SimulatedRequest, Simulator
from worker import frame, samples, trial
from worker.attempts import cause, pause
from worker.course import requests_of
from worker.forecast import Known, Seat, forecast
from worker.frame import Stratum
from worker.heartbeat import Heartbeat
from worker.open_model import OpenModel
from worker.plans import Plan, plan
from worker.process import Process
from worker.sources import Stop, Stopped
from worker.timings import TimedStep
from worker.trial import Speed, Tried, config_of

log = structlog.get_logger()
NO_CACHE = 1 << 20  # blocks of an engine that tells of none


def dry_run(process: Process, plan_id: str) -> None:
    """Bring a dry run to DONE, or to FAILED for a reason that no retry would change. May run twice."""
    settings = process.settings
    with process.sessions.begin() as session:
        run = dry_runs.begin(session, plan_id, settings.max_attempts, lease_seconds=settings.lease_seconds)
    if run is None:
        return
    done = [0]
    try:
        with Heartbeat(lambda: _beat(process, run, done[0]), settings.lease_seconds) as heart:

            def stop() -> bool:
                return process.drain.is_set() or heart.verdict is not Beat.OK

            result = _made(process, run, stop, lambda count: done.__setitem__(0, count))
        with process.sessions.begin() as session:
            dry_runs.finish(session, run, result.model_dump(mode="json"), rows_done=result.rows.sampled)
        log.info("plan made", rows=run.num_rows, seconds=round(result.seconds.value, 1))
    except Stopped:
        with process.sessions.begin() as session:
            dry_runs.give_back(session, run)
    except (DomainError, EngineError) as error:
        log.warning("plan refused", code=error.code, error=str(error))
        with process.sessions.begin() as session:
            dry_runs.fail(session, run, code=error.code, message=str(error))
    except Exception as error:
        _broken(process, run, error)
    if not process.drain.is_set():
        process.dispatch()


def _beat(process: Process, run: DryRun, rows_done: int) -> Beat:
    lease = process.settings.lease_seconds
    with process.sessions.begin() as session:
        return Beat.OK if dry_runs.beat(session, run, lease_seconds=lease, rows_done=rows_done) else Beat.LOST


def _broken(process: Process, run: DryRun, error: Exception) -> None:
    """The engine's fault, or the disk's; how often it is tried is bounded in the database."""
    log.exception("plan broke off")
    settings = process.settings
    with process.sessions.begin() as session:
        dry_runs.retry(
            session,
            run,
            code=cause(error),
            message=str(error),
            max_attempts=settings.max_attempts,
            pause=pause(settings.retry_seconds, run.attempts),
        )


def _made(process: Process, run: DryRun, stop: Stop, told: Callable[[int], None]) -> PlanResult:
    spec, draw = JobSpec.model_validate(run.spec), random.Random(run.id)  # noqa: S311 - a sample, not a secret
    dataset = _inspected(process, run, spec)

    def go_on() -> None:
        if stop():
            raise Stopped

    with process.runner.use(spec.model, stop) as model, model.timed() as steps:
        made, learnt = _learnt(process, run, spec, dataset, model, stop)
        seen = frame.look(dataset, run.num_rows, made, draw, go_on)
        asked = frame.distinct(seen.rows, spec.reuse)
        strata = frame.strata_of(asked, run.sample_rows, draw)
        drawn = sorted((row for stratum in strata for row in stratum.drawn), key=lambda row: row.index)
        tried = trial.run(drawn, made, model, stop, _name(run), told)
        later = trial.more_steps(drawn, tried, model, stop, _name(run))
        seat = _seat(process, run, spec, dataset, model)
        speed = _speed(later or tuple(steps), tried, strata, learnt, seat)
    return forecast(Known(spec, seen, strata, tried, learnt, speed), seat, draw)


def _inspected(process: Process, run: DryRun, spec: JobSpec) -> Dataset:
    """The input as it was when the dry run was asked for. Raises InvalidDataset."""
    with process.sessions.begin() as session:
        folders = tenants.folders(session, process.settings, run.tenant)
    dataset = datasets.inspect(resolve_input(spec.input, folders))
    if dataset.version != run.input_version:
        raise InvalidDataset("changed", spec.input, "its files are not those that were there before; plan it again")
    for _, check in columns.input_checks(spec):
        check(dataset)
    return dataset


def _name(run: DryRun) -> str:
    """Of the attempt's requests: what an earlier one of this worker has left in the cache is not this one's."""
    return f"{run.id} {run.fence}"


def _learnt(
    process: Process, run: DryRun, spec: JobSpec, dataset: Dataset, model: OpenModel, stop: Stop
) -> tuple[Plan, list[tuple[int, ...]]]:
    """The job's recipe as its shards will have it, and the prompts that it takes to find that out (see worker.split).

    The requests are the dry run's own, not the tenant's: they find nothing in the engine's cache that is the tenant's,
    and leave nothing there that would make the job itself faster. Raises InvalidJob and EngineError.
    """
    name = _name(run)
    made = plan(spec, model, process.settings, dataset.schema, {}, name, name)
    if made.maker.formats is not None and made.maker.formats.fixed is not None:
        model.check(made.maker.formats.fixed)
    prompts: list[tuple[int, ...]] = []

    def noted(requests: Iterator[Request]) -> Iterator[Request]:
        for request in requests:
            prompts.append(request.prompt)
            yield request

    learnt = samples.learn(dataset, run.num_rows, made, lambda each: model.run(noted(each), stop, name))
    return plan(spec, model, process.settings, dataset.schema, learnt, name, name), prompts


def _seat(process: Process, run: DryRun, spec: JobSpec, dataset: Dataset, model: OpenModel) -> Seat:
    settings, stats = process.settings, process.runner.stats
    with process.sessions.begin() as session:
        present = max(len(workers(session, seconds=PRESENT_SWEEPS * settings.sweep_seconds)), 1)
    shards = [each.num_rows for each in plan_shards(dataset, spec.shard_rows or settings.shard_rows, spec.max_rows)]
    at_work = min(present, len(shards))
    cache_bytes, cache_tokens = model.cache
    return Seat(
        config=config_of(settings, (stats.blocks_total if stats is not None else 0) or NO_CACHE),
        cache_bytes=cache_bytes,
        cache_tokens=cache_tokens,
        workers=at_work,
        rows_each=_most_rows(shards, at_work),
        settings=settings,
        fingerprint=model.fingerprint,
        shape=_shape(spec.model, settings),
    )


def _most_rows(shards: Sequence[int], num_workers: int) -> int:
    """Of any worker, where each takes the next shard when it has fewer rows behind it than the others."""
    rows = [0] * num_workers
    for num_rows in shards:
        heapq.heapreplace(rows, rows[0] + num_rows)
    return max(rows)


def _shape(model: str, settings: Settings) -> Architecture | None:
    """None for an engine that is not ours: its models need no files."""
    try:
        return Architecture.of(read_config(model_files.find(model, settings)))
    except (ModelMissing, ModelError):
        return None


def _speed(
    steps: Sequence[TimedStep], tried: Tried, strata: Sequence[Stratum], learnt: Sequence[tuple[int, ...]], seat: Seat
) -> Speed | None:
    """None: no row was computed."""
    drawn = sorted((row for stratum in strata for row in stratum.drawn), key=lambda row: row.index)
    lengths = {index: result.output_tokens for index, result in tried.results.items()}

    def simulated(cost: FittedCost) -> float:
        simulator, numbers = Simulator(seat.config, cost), itertools.count()
        trial.simulate(simulator, (SimulatedRequest(prompt, 1) for prompt in learnt), numbers)
        rows = requests_of(drawn, lengths, tried.further)
        return trial.simulate(simulator, (request for row in rows for request in row.requests), numbers)

    return trial.speed_of(steps, tried, simulated) if drawn else None
