"""Routes of results: which files are finished, their bytes, and the rows that failed."""

from __future__ import annotations

import re
from typing import Annotated, Any

from fastapi import APIRouter, Header, Query
from fastapi.responses import Response
from sqlalchemy import Select, select
from sqlalchemy.orm import Session

from api import result_files
from api.auth import Caller
from api.deps import CallerDep, Services, ServicesDep
from api.errors import ResultNotFound
from api.result_schemas import ErrorFile, ErrorPage, ResultFile, ResultPage, joined
from db import audit, jobs, tenants, uris
from db.dead_letters import FOLDER
from db.models import Job, Shard, ShardStatus
from db.stores import Place, store_of

router = APIRouter(prefix="/v1/jobs/{job_id}", tags=["results"])
MANIFEST = "_manifest.json"
SUCCESS = "_SUCCESS"
NAME = re.compile(r"part-\d{5,9}\.parquet|_manifest\.json|_SUCCESS")
PART = re.compile(r"part-\d{5,9}\.parquet")
Limit = Annotated[int, Query(ge=1, le=10_000, description="Most entries of a page.")]
After = Annotated[int, Query(ge=0, lt=2**63, description="The `next` of the page before.")]
BYTES: dict[int | str, dict[str, Any]] = {200: {"content": {"application/octet-stream": {}}}, 206: {}, 416: {}}


@router.get("/results")
def listing(
    job_id: str, services: ServicesDep, caller: CallerDep, response: Response, limit: Limit = 1000, after: After = 0
) -> ResultPage:
    """Finished parts in order. While the job runs, those finished so far, which stay as they are: `partial` is true
    then, and so is the header Nightmill-Partial."""
    with services.sessions.begin() as session:
        job = jobs.get(session, job_id, caller.tenant)
        output = output_of(session, services, job)
        shards = list(session.scalars(_done(job_id, after, limit)))
    response.headers.update(_headers(job))
    files = [ResultFile.of(shard, f"/v1/jobs/{job_id}/results/{shard.part}") for shard in shards[:limit]]
    return ResultPage(
        job_id=job_id,
        status=job.status,
        output=job.output_uri,
        partial=not job.status.terminal,
        complete=job.status.terminal and _is_there(output / SUCCESS),
        manifest_url=f"/v1/jobs/{job_id}/results/{MANIFEST}" if _is_there(output / MANIFEST) else None,
        ranges=joined(files),
        files=files,
        next=shards[limit].index if len(shards) > limit else None,
    )


@router.get("/results/{name}", response_class=Response, responses=BYTES)
def download(
    job_id: str,
    name: str,
    services: ServicesDep,
    caller: CallerDep,
    range_: Annotated[str | None, Header(alias="Range", description="`bytes=FIRST-LAST`.")] = None,
) -> Response:
    """One file, streamed; a Range header gives a part of it. The answer's Nightmill-Partial and Nightmill-Job-Status
    tell a running job."""
    # The name is one that the worker writes.
    return _file(job_id, name, None if NAME.fullmatch(name) is None else (name,), services, caller, range_)


@router.get("/errors")
def errors(
    job_id: str, services: ServicesDep, caller: CallerDep, response: Response, limit: Limit = 1000, after: After = 0
) -> ErrorPage:
    """Files of failed rows in order, with the input's own columns and `nightmill_error`: they can be submitted again as
    they are."""
    with services.sessions.begin() as session:
        job = jobs.get(session, job_id, caller.tenant)
        failed = Shard.rows_succeeded < Shard.stop_row - Shard.start_row
        shards = list(session.scalars(_done(job_id, after, limit).where(failed)))
    response.headers.update(_headers(job))
    return ErrorPage(
        job_id=job_id,
        status=job.status,
        partial=not job.status.terminal,
        files=[ErrorFile.of(shard, f"/v1/jobs/{job_id}/errors/{shard.part}") for shard in shards[:limit]],
        next=shards[limit].index if len(shards) > limit else None,
    )


@router.get("/errors/{name}", response_class=Response, responses=BYTES)
def download_errors(
    job_id: str,
    name: str,
    services: ServicesDep,
    caller: CallerDep,
    range_: Annotated[str | None, Header(alias="Range", description="`bytes=FIRST-LAST`.")] = None,
) -> Response:
    """One file of failed rows, streamed; a Range header gives a part of it."""
    return _file(job_id, name, None if PART.fullmatch(name) is None else (FOLDER, name), services, caller, range_)


def _file(
    job_id: str, name: str, inside: tuple[str, ...] | None, services: Services, caller: Caller, asked: str | None
) -> Response:
    """The file that lies `inside` the job's output. Raises ResultNotFound."""
    with services.sessions.begin() as session:
        job = jobs.get(session, job_id, caller.tenant)
        place = output_of(session, services, job)
        if inside is not None:
            audit.record(session, caller.actor, "result.download", job_id, file="/".join(inside))
    if inside is not None:
        for part in inside:
            place = place / part
        found = result_files.answer(place, asked, _headers(job))
        if found is not None:
            return found
    raise ResultNotFound(job_id, name)


def _done(job_id: str, after: int, limit: int) -> Select[Shard]:
    """The finished shards of a page, and one more if there is a next one."""
    wanted = (Shard.job_id == job_id, Shard.status == ShardStatus.DONE, Shard.index >= after)
    return select(Shard).where(*wanted).order_by(Shard.index).limit(limit + 1)


def output_of(session: Session, services: Services, job: Job) -> Place:
    """Where the job's output lies. Raises DatasetRefused when that is no root of the tenant any more."""
    return uris.locate(job.output_uri, tenants.folders(session, services.settings, job.tenant).roots)


def _is_there(place: Place) -> bool:
    entry = store_of(place).look(place)
    return entry is not None and not entry.is_folder


def _headers(job: Job) -> dict[str, str]:
    partial = "false" if job.status.terminal else "true"
    return {"Nightmill-Job-Status": job.status.value, "Nightmill-Partial": partial}
