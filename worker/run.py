"""run: one attempt at one shard, under its lease."""

from __future__ import annotations

import contextlib

import structlog

from db import shards
from db.errors import DomainError
from db.models import JobStatus
from db.shards import Beat, Claim
from worker import attempts, dead_letters
from worker.attempts import Attempt
from worker.checkpoints import forget
from worker.closing import close
from worker.heartbeat import Heartbeat
from worker.plans import layout_of, plan
from worker.process import Process
from worker.shard_rows import source_schema
from worker.shards import Made, ShardWork, Window, adopt, make
from worker.sources import EngineFailed, Stopped

log = structlog.get_logger()
STOPPING = {Beat.CANCEL: JobStatus.CANCELLING, Beat.EXPIRE: JobStatus.EXPIRING}


def run(process: Process) -> None:
    """Take up the shard whose turn it is, and bring it to an end: done, given back, tried again, or cancelled."""
    settings = process.settings
    claim = shards.take(
        process.sessions,
        owner=process.owner,
        lease_seconds=settings.lease_seconds,
        max_attempts=settings.max_attempts,
        stop=process.drain.is_set,
    )
    if claim is None:
        return  # the message was late or doubled
    known: dict[str, str | int] = {"job": claim.job_id, "shard": claim.index, "attempt": claim.attempts}
    with structlog.contextvars.bound_contextvars(**known), process.tracer.span("shard", **known):
        _attempt(process, claim)
    if not process.drain.is_set():
        process.dispatch()


def _attempt(process: Process, claim: Claim) -> None:
    """Whatever happens, what is finished stays in the checkpoints."""
    attempt = Attempt(process, claim)
    with Heartbeat(attempt.beat, process.settings.lease_seconds) as heart:
        try:
            attempt.open()
            made = _close(attempt, claim.stopping) if claim.stopping else _work(attempt, heart)
            if made is not None:
                _done(attempt, made)
        except Stopped:
            _stopped(attempt, heart.verdict)
        except Exception as error:
            _broken(attempt, error)


def _work(attempt: Attempt, heart: Heartbeat) -> Made:
    process, claim, settings = attempt.process, attempt.claim, attempt.process.settings
    adopted = adopt(attempt.folder, claim)
    if adopted is not None:
        log.info("part adopted")
        return adopted

    def stop() -> bool:
        return process.drain.is_set() or heart.verdict is not Beat.OK

    schema = source_schema(claim)
    with process.runner.use(claim.spec.model, stop, attempt.waits) as model:
        made = plan(claim.spec, model, settings, schema, claim.prepared, claim.job_id, claim.tenant)
        window = Window.of(settings.engine_max_sequences, reorder=claim.spec.reorder)
        suspects = attempt.suspects()
        if not suspects.careful:  # else it is guarded until it waits for the engine
            process.runner.alone.unguard()
        with attempt.checkpoint(made.layout) as checkpoint:
            work = ShardWork(
                claim,
                made.layout,
                made.maker,
                model,
                window,
                stop,
                attempt.tally,
                attempt.saved,
                checkpoint,
                suspects,
                attempt.waits,
            )
            try:
                return make(attempt.folder, claim, work.write, attempt.tally)
            except (Stopped, OSError):  # told to stop, or a full disk: no row's fault
                if heart.verdict is not Beat.LOST:  # a row may freeze the process until its lease is another's
                    with contextlib.suppress(OSError):
                        checkpoint.withdraw()
                raise


def _close(attempt: Attempt, stopping: JobStatus) -> Made | None:
    """The part of a shard whose job is stopping; None when there is nothing that would be worth one."""
    adopted = adopt(attempt.folder, attempt.claim)
    if adopted is not None:
        return adopted
    saved = attempt.look()
    if saved.empty and stopping is JobStatus.CANCELLING:
        with attempt.process.sessions.begin() as session:
            shards.cancelled(session, attempt.claim)
        log.info("shard cancelled")
        return None
    layout = layout_of(attempt.claim.spec, source_schema(attempt.claim))
    return close(attempt.folder, attempt.claim, layout, saved, stopping)


def _done(attempt: Attempt, made: Made) -> None:
    claim, counts = attempt.claim, made.counts
    if counts.errors:
        dead_letters.write(attempt.folder, claim)
    with attempt.process.sessions.begin() as session:
        finish = shards.finish(session, claim, progress=counts.progress, part=made.part, counters=dict(counts.engine))
    if finish.accepted:
        forget(attempt.folder, claim.index)
    log.info("shard done" if finish.accepted else "shard was another's", rows=claim.num_rows)


def _stopped(attempt: Attempt, verdict: Beat) -> None:
    if verdict is Beat.LOST:
        log.warning("lease lost")
        return
    stopping = STOPPING.get(verdict)
    if stopping is not None:
        try:
            made = _close(attempt, stopping)
            if made is not None:
                _done(attempt, made)
        except Exception as error:
            _broken(attempt, error)
        return
    with attempt.process.sessions.begin() as session:
        shards.release(session, attempt.claim)
    log.info("shard given back")


def _broken(attempt: Attempt, error: Exception) -> None:
    """Whatever it was, the attempt is over; how many there are is bounded in the database."""
    if isinstance(error, EngineFailed):
        log.error("attempt failed", error=str(error))  # where, the engine's thread has logged
    else:
        log.exception("attempt failed")
    try:
        attempt.broke()
    except (Stopped, OSError, DomainError) as failure:
        log.warning("what it finished is not counted", error=str(failure) or "lease lost")
    settings, claim = attempt.process.settings, attempt.claim
    with attempt.process.sessions.begin() as session:
        shards.retry(
            session,
            claim,
            code=attempts.cause(error),
            message=str(error),
            max_attempts=settings.max_attempts,
            pause=attempts.pause(settings.retry_seconds, claim.attempts),
        )
