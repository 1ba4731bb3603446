"""run: one attempt at one shard, under its lease."""

from __future__ import annotations

import errno

import structlog

from db import datasets, shards
from db.shards import Beat, Claim, PartFile
from db.uris import resolve
from worker.heartbeat import Heartbeat
from worker.parts import Counts, Tally
from worker.plans import plan
from worker.process import Process
from worker.shards import ShardWork, Window, adopt, compute
from worker.sources import Stopped

log = structlog.get_logger()


def run(process: Process, shard_id: int) -> None:
    """Take the shard if it is free, and bring it to an end: done, given back, tried again, or cancelled."""
    settings = process.settings
    with process.sessions.begin() as session:
        claim = shards.claim(
            session,
            shard_id,
            owner=process.owner,
            lease_seconds=settings.lease_seconds,
            max_attempts=settings.max_attempts,
        )
    if claim is None:
        return  # done, cancelled, or in good hands: the message was late or doubled
    with structlog.contextvars.bound_contextvars(job=claim.job_id, shard=claim.index, attempt=claim.attempts):
        _attempt(process, claim)
    if not process.drain.is_set():
        process.dispatch()


def _attempt(process: Process, claim: Claim) -> None:
    tally = Tally()

    def beat() -> Beat:
        with process.sessions.begin() as session:
            return shards.beat(session, claim, lease_seconds=process.settings.lease_seconds, progress=tally.progress)

    with Heartbeat(beat, process.settings.lease_seconds) as heart:
        try:
            part, counts = _work(process, claim, tally, heart)
        except Stopped:
            _stopped(process, claim, heart.verdict)
        except Exception as error:
            _broken(process, claim, error)
        else:
            _done(process, claim, part, counts)


def _work(process: Process, claim: Claim, tally: Tally, heart: Heartbeat) -> tuple[PartFile, Counts]:
    settings = process.settings
    # Checked again: links inside the roots may have changed since the submission.
    folder = resolve(claim.output_uri, settings.roots)
    adopted = adopt(folder, claim)
    if adopted is not None:
        log.info("part adopted")
        return adopted

    def stop() -> bool:
        return process.drain.is_set() or heart.verdict is not Beat.OK

    schema = datasets.inspect(resolve(claim.file, settings.roots)).schema
    with process.runner.use(claim.spec.model, stop) as model:
        made = plan(claim.spec, model, settings, schema, claim.prepared, claim.job_id)
        window = Window.of(settings.engine_max_sequences)
        return compute(folder, ShardWork(claim, made.layout, made.maker, model, window, stop, tally))


def _done(process: Process, claim: Claim, part: PartFile, counts: Counts) -> None:
    with process.sessions.begin() as session:
        finish = shards.finish(session, claim, progress=counts.progress, part=part, counters=dict(counts.engine))
    log.info("shard done" if finish.accepted else "shard was another's", rows=claim.num_rows)


def _stopped(process: Process, claim: Claim, verdict: Beat) -> None:
    if verdict is Beat.LOST:
        log.warning("lease lost")
        return
    with process.sessions.begin() as session:
        if verdict is Beat.CANCEL:
            shards.cancelled(session, claim)
        else:
            shards.release(session, claim)
    log.info("shard cancelled" if verdict is Beat.CANCEL else "shard given back")


def _broken(process: Process, claim: Claim, error: Exception) -> None:
    """Whatever it was, the attempt is over; how many there are is bounded in the database."""
    log.exception("attempt failed")
    code = getattr(error, "code", "internal_error")
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        code = "no_space"
    with process.sessions.begin() as session:
        shards.retry(session, claim, code=str(code), message=str(error), max_attempts=process.settings.max_attempts)
