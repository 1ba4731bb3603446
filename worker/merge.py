"""merge: the manifest of a job, then its `_SUCCESS`, then the end of the job, in that order."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any, BinaryIO

import pyarrow as pa
import structlog
from sqlalchemy import select

from db import jobs, phases, tenants, windows
from db.errors import DomainError
from db.footers import open_parquet
from db.models import Job, JobStatus, Shard, ShardStatus
from db.publish import publish, sweep_tmp
from db.session import db_now
from db.specs import JobSpec
from db.stores import Place
from db.uris import resolve_made
from worker.counters import Counters, added, shown
from worker.heartbeat import Heartbeat
from worker.parts import PartConflict, read_counts
from worker.process import Process
from worker.split import phase_beat, retry_phase

log = structlog.get_logger()

MANIFEST = "_manifest.json"
SUCCESS = "_SUCCESS"
PAGE = 500  # shards read in one transaction


def merge(process: Process, job_id: str) -> None:
    """End a job that has no open shard left. A zombie may still be at it: the first manifest stays."""
    settings = process.settings
    with process.sessions.begin() as session:
        job = phases.begin_merge(session, job_id, settings.max_attempts, lease_seconds=settings.lease_seconds)
    if job is None:
        return
    try:
        with Heartbeat(lambda: phase_beat(process, job), settings.lease_seconds):
            _merge(process, job)
    except (DomainError, PartConflict) as error:
        log.error("manifest failed", error=str(error))
        with process.sessions.begin() as session:
            phases.fail(session, job, code=error.code, message=str(error))
    except Exception as error:
        retry_phase(process, job, error)
    else:
        with process.sessions.begin() as session:
            status = jobs.complete(session, job_id)
        log.info("job ended", status=status)


def _merge(process: Process, job: Job) -> None:
    with process.sessions.begin() as session:
        roots = tenants.folders(session, process.settings, job.tenant).roots
    folder = resolve_made(job.output_uri, roots)
    sweep_tmp(folder, older_than=0.0)  # of killed attempts: nobody who may write is at work any more
    publish(folder, MANIFEST, lambda sink: _write(process, job, folder, sink))
    if job.status is JobStatus.FINALIZING:
        publish(folder, SUCCESS, lambda sink: None)


def _write(process: Process, job: Job, folder: Place, sink: BinaryIO) -> None:
    """The head as one object, and the files streamed into it: a job may have a million parts."""
    head = json.dumps(_head(process, job, folder), indent=2, ensure_ascii=False)
    sink.write(head.removesuffix("\n}").encode() + b',\n  "files": [')
    for position, shard in enumerate(_parts(process, job.id)):
        entry = {
            "name": shard.part,
            "shard": shard.index,
            "first_row": shard.first_row,
            "rows": shard.stop_row - shard.start_row,
            "rows_failed": shard.rows_failed,
            "bytes": shard.part_bytes,
            "sha256": shard.part_sha256,
        }
        sink.write((",\n    " if position else "\n    ").encode() + json.dumps(entry).encode())
    sink.write(b"\n  ]\n}\n")


def _head(process: Process, job: Job, folder: Place) -> dict[str, Any]:
    spec = JobSpec.model_validate(job.spec)
    prepared = dict(job.prepared or {})
    first = next(_parts(process, job.id), None)
    schema = [] if first is None else list(_schema_of(folder / str(first.part)))
    with process.sessions.begin() as session:
        now = session.scalar(select(db_now()))
    return {
        "format": "nightmill/1",
        "job": job.id,
        "complete": job.status is JobStatus.FINALIZING,
        "created_at": _iso(job.created_at),
        "started_at": _iso(job.started_at),
        "running_at": _iso(job.running_at),
        "finished_at": _iso(now),
        "model": {"name": spec.model, "fingerprint": prepared.pop("model_fingerprint", None)},
        "sampling": spec.sampling.model_dump(mode="json"),
        "spec": job.spec,
        **({"new_rows": prepared.pop("new_rows")} if "new_rows" in prepared else {}),
        "prepared": prepared,
        "status": _ending(job).value,
        "rows": {
            "input": job.num_rows,
            "succeeded": job.rows_succeeded,
            "failed": job.rows_failed,
            "unfinished": job.num_rows - job.rows_succeeded - job.rows_failed,
        },
        "errors": _errors(process, job.id, folder),
        "tokens": {"prompt": job.prompt_tokens, "cached": job.cached_tokens, "output": job.output_tokens},
        "engine": shown(_counters(process, job.id)),
        **_measured(process, job),
        "schema": [{"name": field.name, "type": str(field.type), "nullable": field.nullable} for field in schema],
    }


def _schema_of(part: Place) -> pa.Schema:
    with open_parquet(part) as opened:
        return opened.schema


def _ending(job: Job) -> JobStatus:
    """What the job is about to become."""
    if job.status in jobs.STOPPED:
        return jobs.STOPPED[job.status]
    if job.num_rows > 0 and job.rows_succeeded == 0:
        return JobStatus.FAILED
    return JobStatus.COMPLETED_WITH_ERRORS if job.rows_failed else JobStatus.COMPLETED


def _errors(process: Process, job_id: str, folder: Place) -> dict[str, int]:
    """Error rows by code, from the footers of the parts that have any."""
    total: Counter[str] = Counter()
    for shard in _parts(process, job_id):
        num_rows = shard.stop_row - shard.start_row
        if shard.rows_succeeded < num_rows:
            total.update(read_counts(folder / str(shard.part), job_id, shard.index, num_rows).errors)
    return dict(sorted(total.items()))


def _counters(process: Process, job_id: str) -> Counters:
    """What the engines did while the job's shards were at work."""
    total: Counters = {}
    for shard in _parts(process, job_id):
        total = added(total, shard.counters or {})
    return total


def _measured(process: Process, job: Job) -> dict[str, Any]:
    """Percentiles of the job, and by windows of time."""
    with process.sessions.begin() as session:
        found = windows.of(session, job)
    return {
        "percentiles": {measure: asdict(each) for measure, each in windows.whole(found).items()},
        "windows": [
            {
                "from": _iso(window.began),
                "until": _iso(window.ended),
                **{measure: asdict(each) for measure, each in window.percentiles.items()},
            }
            for window in found
        ],
    }


def _parts(process: Process, job_id: str) -> Iterator[Shard]:
    """The done shards of a job by index, a page at a time, so that no transaction is held open meanwhile."""
    after = -1
    while True:
        query = (
            select(Shard)
            .where(Shard.job_id == job_id, Shard.status == ShardStatus.DONE, Shard.index > after)
            .order_by(Shard.index)
            .limit(PAGE)
        )
        with process.sessions.begin() as session:
            page = list(session.scalars(query))
        yield from page
        if len(page) < PAGE:
            return
        after = page[-1].index


def _iso(seconds: float | None) -> str | None:
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")
