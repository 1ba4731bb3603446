"""split: what only the worker can check about a job, what all its shards must know alike, and its shards."""

from __future__ import annotations

from typing import Any

import structlog

from db import columns, datasets, lengths, phases, schedules, tenants
from db.datasets import Dataset
from db.errors import DomainError, InvalidDataset, InvalidJob
from db.files import resolve_input
from db.models import Job
from db.plans import plan_shards
from db.shards import Beat
from db.specs import JobSpec
from db.stores import store_of
from db.uris import resolve_output
from engine.errors import EngineError
from worker import new_rows, samples
from worker.attempts import cause, pause
from worker.heartbeat import Heartbeat
from worker.new_rows import Place
from worker.plans import plan
from worker.process import Process
from worker.sources import Stopped

log = structlog.get_logger()


def split(process: Process, job_id: str) -> None:
    """Bring a job from VALIDATING to RUNNING, or to FAILED for a reason that no retry would change."""
    settings = process.settings
    with process.sessions.begin() as session:
        job = phases.begin_split(session, job_id, settings.max_attempts, lease_seconds=settings.lease_seconds)
    if job is None:
        return
    try:
        with Heartbeat(lambda: phase_beat(process, job), settings.lease_seconds) as heart:
            _split(process, job, heart)
    except Stopped:  # Cancelled, or this worker is told to end.
        with process.sessions.begin() as session:
            phases.give_back(session, job)
    except (DomainError, EngineError) as error:
        log.warning("job refused", code=error.code, error=str(error))
        with process.sessions.begin() as session:
            phases.fail(session, job, code=error.code, message=str(error))
    except Exception as error:
        # Not the job's fault for certain: the engine, the disk.
        retry_phase(process, job, error)
    else:
        process.dispatch()


def phase_beat(process: Process, job: Job) -> Beat:
    with process.sessions.begin() as session:
        alive = phases.beat(session, job, lease_seconds=process.settings.lease_seconds)
    return Beat.OK if alive else Beat.LOST


def retry_phase(process: Process, job: Job, error: Exception) -> None:
    """A split or merge broke; how often is bounded in the database, and the user is told why."""
    log.exception("split or merge broke off")
    settings = process.settings
    with process.sessions.begin() as session:
        phases.retry(
            session,
            job,
            code=cause(error),
            message=str(error),
            max_attempts=settings.max_attempts,
            pause=pause(settings.retry_seconds, job.attempts),
        )


def _split(process: Process, job: Job, heart: Heartbeat) -> None:
    settings, spec = process.settings, JobSpec.model_validate(job.spec)
    with process.sessions.begin() as session:
        folders = tenants.folders(session, settings, job.tenant)
    dataset = datasets.inspect(resolve_input(spec.input, folders))
    if job.input_version is not None and dataset.version != job.input_version:
        reason = "its files are not those that were there when the job was submitted; submit it again"
        raise InvalidDataset("changed", spec.input, reason)
    for _, check in columns.input_checks(spec):  # as at submission: the files may be others by now
        check(dataset)
    if spec.only_new is not None:
        _split_new(process, job, spec, dataset, heart)
        return
    output = resolve_output(job.output_uri, folders.roots)
    store_of(output).prepare(output)
    prepared = prepare(process, job, spec, dataset, job.num_rows, heart)
    plans = plan_shards(dataset, spec.shard_rows or settings.shard_rows, spec.max_rows)
    shards = lengths.measured(dataset, plans, columns.read_columns(spec))
    with process.sessions.begin() as session:
        phases.finish_split(session, job, prepared=prepared, shards=shards)
    log.info("job split", rows=job.num_rows)


def _split_new(process: Process, job: Job, spec: JobSpec, dataset: Dataset, heart: Heartbeat) -> None:
    """The rows that the schedule's earlier runs did not have become a dataset of their own, and that is what is run."""
    settings = process.settings

    def go_on() -> None:
        if process.drain.is_set() or heart.verdict is not Beat.OK:
            raise Stopped

    with process.sessions.begin() as session:
        earlier = schedules.earlier_of(session, job.id)
        roots = tenants.folders(session, settings, job.tenant).roots
    if earlier is None:
        raise InvalidJob("only_new", "the job's schedule was deleted: which rows are new is not known any more")
    found = new_rows.find(Place(settings.home, roots), job, spec, dataset, earlier.outputs, go_on)
    prepared = prepare(process, job, spec, found.dataset, found.dataset.num_rows, heart)
    prepared["new_rows"] = found.counts
    plans = plan_shards(found.dataset, spec.shard_rows or settings.shard_rows)
    shards = lengths.measured(found.dataset, plans, columns.read_columns(spec))
    with process.sessions.begin() as session:
        if phases.finish_split(session, job, prepared=prepared, shards=shards, num_rows=found.dataset.num_rows):
            schedules.record_rows(session, earlier.run.id, found.counts["input"], found.counts["skipped"])
    log.info("job split", rows=found.dataset.num_rows, skipped=found.counts["skipped"])


def prepare(
    process: Process, job: Job, spec: JobSpec, dataset: Dataset, num_rows: int, heart: Heartbeat
) -> dict[str, Any]:
    """What the manifest and every shard must know of the model: its fingerprint, and what the recipe learns of it.

    Raises EngineError also for the job's format, before the first row runs.
    """

    def stop() -> bool:
        return process.drain.is_set() or heart.verdict is not Beat.OK

    with process.runner.use(spec.model, stop) as model:
        made = plan(spec, model, process.settings, dataset.schema, {}, job.id, job.tenant)
        formats = made.maker.formats
        if formats is not None and formats.fixed is not None:
            model.check(formats.fixed)
        learnt = samples.learn(dataset, num_rows, made, lambda requests: model.run(requests, stop, job.id))
        return {"model_fingerprint": model.fingerprint, **dataset.partitions.as_json(), **learnt}
