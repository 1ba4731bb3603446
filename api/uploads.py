"""The route of uploads: a Parquet file as multipart form data, or as the plain body of the request."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Iterator
from functools import partial
from typing import Annotated, BinaryIO

import anyio.from_thread
import anyio.to_thread
from fastapi import APIRouter, Query, Request, Response
from starlette.datastructures import UploadFile

from api.auth import Caller
from api.deps import Services, ServicesDep, SubmissionDep
from api.errors import naming
from api.openai import uploads as openai_uploads
from api.schemas import UploadView
from db import files, tenants
from db.errors import InvalidJob

router = APIRouter(prefix="/v1/uploads", tags=["uploads"])
CHUNK_BYTES = 1 << 20
BODY = {
    "requestBody": {
        "required": True,
        "content": {
            "multipart/form-data": {
                "schema": {
                    "type": "object",
                    "required": ["file"],
                    "properties": {"file": {"type": "string", "format": "binary"}},
                }
            },
            "application/vnd.apache.parquet": {"schema": {"type": "string", "format": "binary"}},
        },
    }
}


@router.post("", status_code=201, openapi_extra=BODY, response_model=UploadView)
async def upload(
    request: Request,
    response: Response,
    services: ServicesDep,
    caller: SubmissionDep,
    filename: Annotated[str | None, Query(description="Name of a file that is the whole body.")] = None,
) -> UploadView | Response:
    """Take a Parquet file; the answer's `uri` is what a job's `input` takes. JSON begins an OpenAI upload in parts.

    `curl -F file=@table.parquet URL/v1/uploads`, or, without a second copy on the server's disk,
    `curl -X POST -T table.parquet -H 'Content-Type: application/octet-stream' URL/v1/uploads?filename=table.parquet`.
    """
    kind = request.headers.get("content-type", "")
    if kind.startswith("application/json"):
        return await openai_uploads.begin(request, services, caller)
    if kind.startswith("multipart/form-data"):
        async with request.form(max_files=1, max_fields=1) as form:
            part = form.get("file")
            if not isinstance(part, UploadFile):
                raise InvalidJob("file", "the form has no file under this name")
            save = partial(store, services, caller, filename or part.filename or "upload.parquet", chunks(part.file))
            view = await anyio.to_thread.run_sync(save)
    else:
        body = request.stream()
        save = partial(store, services, caller, filename or "upload.parquet", _pulled(body))
        view = await anyio.to_thread.run_sync(save)
    response.headers["Location"] = view.uri
    return view


def store(services: Services, caller: Caller, filename: str, chunks: Iterator[bytes]) -> UploadView:
    upload_id = f"upl_{secrets.token_hex(12)}"
    limit = services.settings.max_upload_bytes
    with services.sessions.begin() as session:
        uploads = tenants.folders(session, services.settings, caller.tenant).uploads
    uploads.mkdir(parents=True, exist_ok=True)
    with naming("file"):
        stored = files.store_upload(uploads, upload_id=upload_id, filename=filename, chunks=chunks, max_bytes=limit)
    return UploadView.of(files.record_upload(services.sessions, stored, caller.actor))


def chunks(file: BinaryIO) -> Iterator[bytes]:
    while chunk := file.read(CHUNK_BYTES):
        yield chunk


def _pulled(body: AsyncIterator[bytes]) -> Iterator[bytes]:
    """The body's chunks, pulled from the event loop by the thread that stores them: as slow as the disk, no queue."""
    while (chunk := anyio.from_thread.run(_next, body)) is not None:
        yield chunk


async def _next(body: AsyncIterator[bytes]) -> bytes | None:
    return await anext(body, None)
