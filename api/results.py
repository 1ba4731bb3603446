"""Routes of results: which files are finished, and their bytes."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Annotated

from fastapi import APIRouter, Query
from fastapi.responses import FileResponse
from sqlalchemy import select

from api.deps import CallerDep, ServicesDep
from api.errors import ResultNotFound
from api.schemas import ResultFile, ResultPage
from db import jobs
from db.models import Shard, ShardStatus

router = APIRouter(prefix="/v1/jobs/{job_id}/results", tags=["results"])
MANIFEST = "_manifest.json"
SUCCESS = "_SUCCESS"
NAME = re.compile(r"part-\d{5,9}\.parquet|_manifest\.json|_SUCCESS")
MEDIA_TYPES = {".parquet": "application/vnd.apache.parquet", ".json": "application/json"}


@router.get("")
def listing(
    job_id: str,
    services: ServicesDep,
    caller: CallerDep,
    limit: Annotated[int, Query(ge=1, le=10_000)] = 1000,
    after: Annotated[int, Query(ge=0, description="The `next` of the page before.")] = 0,
) -> ResultPage:
    """Finished parts in order. While the job runs, those finished so far."""
    with services.sessions.begin() as session:
        job = jobs.get(session, job_id, caller.tenant)
        query = (
            select(Shard)
            .where(Shard.job_id == job_id, Shard.status == ShardStatus.DONE, Shard.index >= after)
            .order_by(Shard.index)
            .limit(limit + 1)
        )
        shards = list(session.scalars(query))
        files = [ResultFile.of(shard, f"/v1/jobs/{job_id}/results/{shard.part}") for shard in shards[:limit]]
        output = Path(job.output_uri)
        return ResultPage(
            job_id=job_id,
            status=job.status,
            output=job.output_uri,
            complete=job.status.terminal and (output / SUCCESS).is_file(),
            manifest_url=f"/v1/jobs/{job_id}/results/{MANIFEST}" if (output / MANIFEST).is_file() else None,
            files=files,
            next=shards[limit].index if len(shards) > limit else None,
        )


@router.get("/{name}", response_class=FileResponse)
def download(job_id: str, name: str, services: ServicesDep, caller: CallerDep) -> FileResponse:
    """One file, streamed; a Range header gives a part of it. The answer's Nightmill-Job-Status tells a running job."""
    with services.sessions.begin() as session:
        job = jobs.get(session, job_id, caller.tenant)
        folder, status = Path(job.output_uri), job.status.value
    path = folder / name
    # The name is one that the worker writes, and the file no link that something else put there.
    if (
        not NAME.fullmatch(name)
        or not path.is_file()
        or os.path.realpath(path) != os.path.join(os.path.realpath(folder), name)
    ):
        raise ResultNotFound(job_id, name)
    media_type = MEDIA_TYPES.get(path.suffix, "text/plain")
    return FileResponse(path, media_type=media_type, filename=name, headers={"Nightmill-Job-Status": status})
