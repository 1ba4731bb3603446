"""/v1/files: what clients send for a batch, and what batches give back."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Annotated, Any, BinaryIO, Literal

import anyio.to_thread
from fastapi import APIRouter, Query, Request
from fastapi.responses import FileResponse, Response, StreamingResponse
from starlette.datastructures import FormData, UploadFile

from api.auth import Caller
from api.deps import CallerDep, Services, ServicesDep, SubmissionDep, SubmitterDep
from api.openai import rendering, views
from api.openai.deps import TenantDep
from api.openai.errors import APIError, OpenAIRoute, not_found
from api.openai.rendering import Kind
from api.openai.schemas import check_purpose
from db import audit, openai_batches, openai_files
from db.errors import UploadTooLarge
from db.models import Job
from db.openai_models import Batch, OpenAIFile

router = APIRouter(prefix="/v1/files", tags=["openai"], route_class=OpenAIRoute)
MEDIA_TYPE = "application/jsonl"
DAY = 86_400
FORM = {
    "requestBody": {
        "required": True,
        "content": {
            "multipart/form-data": {
                "schema": {
                    "type": "object",
                    "required": ["file", "purpose"],
                    "properties": {
                        "file": {"type": "string", "format": "binary"},
                        "purpose": {"type": "string", "enum": ["batch"]},
                        "expires_after[anchor]": {"type": "string", "enum": ["created_at"]},
                        "expires_after[seconds]": {"type": "integer", "minimum": 3600, "maximum": 2_592_000},
                    },
                }
            }
        },
    }
}


@router.post("", openapi_extra=FORM)
async def upload(request: Request, services: ServicesDep, caller: SubmissionDep) -> dict[str, Any]:
    """Take the JSONL file of a batch, as multipart form data with `file` and `purpose`."""
    async with request.form(max_files=1, max_fields=8) as form:
        part = form.get("file")
        if not isinstance(part, UploadFile):
            raise APIError("Missing required parameter: 'file'.", param="file", code="missing_required_parameter")
        if "purpose" not in form:
            raise APIError("Missing required parameter: 'purpose'.", param="purpose", code="missing_required_parameter")
        check_purpose(str(form["purpose"]))
        name, expires = part.filename or "", _expiry(form)
        check_name(name)
        save = partial(save_file, services, caller, name, _chunks(part.file), expires)
        return views.file(await anyio.to_thread.run_sync(save))


def check_name(filename: str) -> None:
    if not filename.lower().endswith(".jsonl"):
        message = "Invalid file format for Batch API. Must be .jsonl"
        raise APIError(message, param="file", code="invalid_file_format")


def save_file(
    services: Services, caller: Caller, filename: str, chunks: Iterator[bytes], expires_seconds: int | None
) -> OpenAIFile:
    """Store a file and its row. Raises APIError, UploadTooLarge; then nothing is kept."""
    settings, file_id = services.settings, openai_files.new_id("file-")
    most = settings.openai_max_file_bytes
    try:
        size = openai_files.store(settings.files, file_id, chunks, most=most, shown=filename)
    except UploadTooLarge as error:
        raise APIError(str(error), status=413, param="file", code="file_too_large") from error
    path = openai_files.file_path(settings, file_id)
    try:
        if size == 0:
            raise APIError("Invalid file format: the file is empty.", param="file", code="empty_file")
        row = OpenAIFile(id=file_id, filename=filename[:1024], purpose="batch", num_bytes=size)
        lifetime = expires_seconds or settings.openai_file_days * DAY
        with services.sessions.begin() as session:
            audit.record(session, caller.actor, "file.create", file_id, bytes=size)
            return openai_files.create(session, caller.tenant, row, lifetime)
    except BaseException:
        path.unlink(missing_ok=True)
        raise


def _expiry(form: FormData) -> int | None:
    """Seconds of `expires_after`, which forms write as two fields."""
    anchor, seconds = form.get("expires_after[anchor]"), form.get("expires_after[seconds]")
    known = {"file", "purpose", "expires_after[anchor]", "expires_after[seconds]"}
    unknown = sorted(set(form) - known)
    if unknown:
        raise APIError(f"Unknown parameter: '{unknown[0]}'.", param=unknown[0], code="unknown_parameter")
    if anchor is None and seconds is None:
        return None
    if anchor != "created_at":
        raise APIError("The anchor must be 'created_at'.", param="expires_after.anchor", code="invalid_value")
    text = str(seconds)
    if not (text.isdecimal() and len(text) < 8 and 3600 <= int(text) <= 2_592_000):
        message = "'expires_after.seconds' must be an integer from 3600 to 2592000."
        raise APIError(message, param="expires_after.seconds", code="invalid_value")
    return int(text)


def _chunks(file: BinaryIO) -> Iterator[bytes]:
    while chunk := file.read(openai_files.CHUNK_BYTES):
        yield chunk


@router.get("")
def listing(
    services: ServicesDep,
    tenant: TenantDep,
    purpose: Annotated[str | None, Query(description="Files of this purpose alone.")] = None,
    limit: Annotated[int, Query(ge=1, le=10_000, description="Most entries of a page.")] = 10_000,
    order: Annotated[Literal["asc", "desc"], Query(description="By age; newest first without.")] = "desc",
    after: Annotated[str | None, Query(description="Id of the last entry of the page before.")] = None,
) -> dict[str, Any]:
    """Files of a purpose, or all of them, a page at a time."""
    with services.sessions.begin() as session:
        cursor = None if after is None else openai_files.get(session, tenant, after)
        if after is not None and cursor is None:
            raise APIError(f"No file found with id '{after}'.", param="after", code="invalid_value")
        found = openai_files.listing(
            session, tenant, purpose=purpose, limit=limit + 1, after=cursor, ascending=order == "asc"
        )
    return views.page([views.file(row) for row in found], limit)


@router.get("/{file_id}")
def read(file_id: str, services: ServicesDep, tenant: TenantDep) -> dict[str, Any]:
    """A file's name, size, purpose and expiry; its bytes are at `…/content`."""
    return views.file(_get(services, tenant, file_id))


@router.delete("/{file_id}")
def delete(file_id: str, services: ServicesDep, caller: SubmitterDep) -> dict[str, Any]:
    """The rows of an output stay with the batch's job; its file here is gone."""
    row = _get(services, caller.tenant, file_id)
    with services.sessions.begin() as session:
        openai_files.remove(session, services.settings, row)
        audit.record(session, caller.actor, "file.delete", file_id)
    return {"id": file_id, "object": "file", "deleted": True}


@router.get("/{file_id}/content", response_class=Response)
def content(
    file_id: str,
    services: ServicesDep,
    caller: CallerDep,
    offset: Annotated[
        int, Query(ge=0, lt=2**63, description="Lines to leave out: the `X-Last-Line` of the answer before.")
    ] = 0,
) -> Response:
    """The bytes. Of a batch under way, the finished lines so far: `X-Incomplete` is true, and `X-Last-Line` says how
    many there are, offset included."""
    with services.sessions.begin() as session:
        row = openai_files.get(session, caller.tenant, file_id)
        batch = openai_batches.of_file(session, caller.tenant, file_id)
        job = None if batch is None else openai_batches.job_of(session, batch)
        early = batch is not None and not openai_batches.ended(batch)
        if row is not None or early:
            audit.record(session, caller.actor, "file.download", file_id, job=job and job.id)
    if batch is not None and (row is not None or early):
        return _rendered(services, batch, job, row, file_id, offset)
    if row is None:
        raise not_found("file", file_id)
    if offset:
        raise APIError("'offset' is for the output files of batches.", param="offset", code="invalid_value")
    return FileResponse(openai_files.file_path(services.settings, row.id), media_type=MEDIA_TYPE, filename=row.filename)


def _rendered(
    services: Services, batch: Batch, job: Job | None, row: OpenAIFile | None, file_id: str, offset: int
) -> Response:
    kind = Kind.OUTPUT if file_id == batch.output_file_id else Kind.ERROR
    if job is None:  # its file is still being checked
        return Response(b"", headers={"X-Incomplete": "true", "X-Last-Line": "0"}, media_type=MEDIA_TYPE)
    extent = rendering.extent(services, job, kind)
    headers = {
        "X-Incomplete": "false" if extent.complete else "true",
        "X-Last-Line": str(max(extent.num_lines, offset)),
    }
    if row is not None and not offset:
        headers["Content-Length"] = str(row.num_bytes)  # a download that breaks off is noticed
    found = rendering.lines(services, batch, job, kind, offset)
    return StreamingResponse(found, headers=headers, media_type=MEDIA_TYPE)


def _get(services: Services, tenant: str, file_id: str) -> OpenAIFile:
    with services.sessions.begin() as session:
        row = openai_files.get(session, tenant, file_id)
    if row is None:
        raise not_found("file", file_id)
    return row
