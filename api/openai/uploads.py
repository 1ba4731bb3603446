"""/v1/uploads: a file in parts. Parts lie on the disk until they are joined; an upload that is not completed in an hour
expires.

`POST /v1/uploads` is the native route as well: a JSON body begins an upload in parts, anything else is a Parquet file
(api.uploads sends the former here).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from functools import partial
from typing import Any, BinaryIO

import anyio.to_thread
from fastapi import APIRouter, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from pydantic import ValidationError
from sqlalchemy.orm import Session
from starlette.datastructures import UploadFile

from api.auth import Caller
from api.deps import Services, ServicesDep, SubmissionDep, SubmitterDep
from api.openai import views
from api.openai.errors import APIError, OpenAIRoute, answering, not_found
from api.openai.files import check_name, save_file
from api.openai.schemas import CompleteRequest, UploadRequest, check_purpose
from db import audit, openai_files
from db.errors import UploadTooLarge
from db.openai_models import OpenAIFile, OpenAIPart, OpenAIUpload
from db.session import db_now

router = APIRouter(prefix="/v1/uploads/{upload_id}", tags=["openai"], route_class=OpenAIRoute)
LIFETIME = 3600
MAX_PARTS = 1000  # of 64 MB, as the contract has them, far more than any file may have


async def begin(request: Request, services: Services, caller: Caller) -> Response:
    """Answer a JSON body: the beginning of an upload in parts."""

    async def answer() -> Response:
        try:
            asked = UploadRequest.model_validate(json.loads(await request.body()))
        except ValidationError as error:
            # As FastAPI names places: a mistake in the body as a whole has one too.
            raise RequestValidationError(
                [{**each, "loc": ("body", *each["loc"])} for each in error.errors()]
            ) from error
        except ValueError as error:
            raise APIError(f"The body is not JSON: {error}") from error
        except RecursionError as error:
            raise APIError("The body is not JSON that can be read: it is nested too deeply.") from error
        return JSONResponse(await anyio.to_thread.run_sync(partial(_begin, services, caller, asked)))

    return await answering(request, answer)


def _begin(services: Services, caller: Caller, asked: UploadRequest) -> dict[str, Any]:
    check_purpose(asked.purpose)
    check_name(asked.filename)
    most = services.settings.openai_max_file_bytes
    if asked.bytes > most:
        raise APIError(f"A file has at most {most} bytes.", param="bytes", code="file_too_large")
    row = OpenAIUpload(id=openai_files.new_id("upload_"), tenant=caller.tenant, filename=asked.filename)
    row.status = "pending"
    row.mime_type, row.purpose, row.num_bytes = asked.mime_type, asked.purpose, asked.bytes
    row.file_expires_seconds = None if asked.expires_after is None else asked.expires_after.seconds
    row.created_at, row.expires_at = db_now(), db_now() + LIFETIME
    with services.sessions.begin() as session:
        session.add(row)
        session.flush()
        session.refresh(row)
        audit.record(session, caller.actor, "upload.begin", row.id, bytes=row.num_bytes)
        return views.upload(row)


@router.post("/parts")
async def part(upload_id: str, request: Request, services: ServicesDep, caller: SubmissionDep) -> dict[str, Any]:
    """Take one part, as multipart form data with `data`. Parts may come in any order, and side by side. A part whose
    answer was lost may be sent again: together they have at most twice the bytes that the upload said."""
    async with request.form(max_files=1, max_fields=1) as form:
        data = form.get("data")
        if not isinstance(data, UploadFile):
            raise APIError("Missing required parameter: 'data'.", param="data", code="missing_required_parameter")
        return await anyio.to_thread.run_sync(partial(_part, services, caller.tenant, upload_id, data.file))


def _part(services: Services, tenant: str, upload_id: str, data: BinaryIO) -> dict[str, Any]:
    with services.sessions.begin() as session:
        left = _left(session, _pending(session, tenant, upload_id))
    part_id = openai_files.new_id("part_")
    folder = openai_files.parts_folder(services.settings, upload_id)
    try:
        size = openai_files.store(folder, part_id, _chunks(data), most=left, shown=part_id)
    except UploadTooLarge as error:
        raise _too_long(left) from error
    try:
        with services.sessions.begin() as session:
            # Others may have come meanwhile, and the upload may have ended.
            if size > (left := _left(session, _pending(session, tenant, upload_id))):
                raise _too_long(left)
            row = OpenAIPart(id=part_id, upload_id=upload_id, num_bytes=size, created_at=db_now())
            session.add(row)
            session.flush()
            session.refresh(row)
            created_at = int(row.created_at)
    except BaseException:
        (folder / part_id).unlink(missing_ok=True)
        raise
    return {"id": part_id, "object": "upload.part", "created_at": created_at, "upload_id": upload_id}


def _left(session: Session, upload: OpenAIUpload) -> int:
    """How many bytes may still come. Raises APIError: the upload has as many parts as it may."""
    sizes = openai_files.parts(session, upload.id)
    if len(sizes) >= MAX_PARTS:
        raise APIError(f"An upload has at most {MAX_PARTS} parts.", param="data", code="too_many_parts")
    return min(upload.num_bytes, 2 * upload.num_bytes - sum(sizes.values()))


def _too_long(left: int) -> APIError:
    message = f"The part has more than {left} bytes: one has at most the upload's, all together twice as many."
    return APIError(message, param="data", code="file_too_large")


@router.post("/complete")
def complete(upload_id: str, request: CompleteRequest, services: ServicesDep, caller: SubmitterDep) -> dict[str, Any]:
    """Join the parts in the order given. They must have all the bytes that the upload said, and the `md5` if given."""
    with services.sessions.begin() as session:
        upload = _pending(session, caller.tenant, upload_id)
        sizes = openai_files.parts(session, upload_id)
    for part_id in request.part_ids:
        if part_id not in sizes:
            raise APIError(f"No part found with id '{part_id}'.", param="part_ids", code="invalid_value")
    found = sum(sizes[part_id] for part_id in request.part_ids)
    if len(set(request.part_ids)) != len(request.part_ids):
        raise APIError("A part is named twice.", param="part_ids", code="invalid_value")
    if found != upload.num_bytes:
        message = f"The parts have {found} bytes, not the {upload.num_bytes} that the upload said."
        raise APIError(message, param="part_ids", code="invalid_value")
    digest = hashlib.md5(usedforsecurity=False)  # the contract's own check against broken transfers
    folder = openai_files.parts_folder(services.settings, upload_id)

    def joined() -> Iterator[bytes]:
        for part_id in request.part_ids:
            for chunk in openai_files.read(folder / part_id):
                digest.update(chunk)
                yield chunk
        if request.md5 is not None and digest.hexdigest() != request.md5.lower():
            raise APIError(f"The parts have the MD5 {digest.hexdigest()}.", param="md5", code="checksum_mismatch")

    made = save_file(services, caller, upload.filename, joined(), upload.file_expires_seconds)
    view = _completed(services, caller, upload_id, made)
    if view is None:  # completed or cancelled meanwhile, by another call
        with services.sessions.begin() as session:
            openai_files.remove(session, services.settings, session.get_one(OpenAIFile, made.id))
            audit.record(session, caller.actor, "file.delete", made.id)
        raise _not_pending(upload_id, "no longer pending")
    return view


def _completed(services: Services, caller: Caller, upload_id: str, made: OpenAIFile) -> dict[str, Any] | None:
    with services.sessions.begin() as session:
        upload = openai_files.get_upload(session, caller.tenant, upload_id)
        if upload is None or upload.status != "pending":
            return None
        upload.file_id = made.id
        session.flush()
        openai_files.close_upload(session, services.settings, upload, "completed")
        audit.record(session, caller.actor, "upload.complete", upload_id, file=made.id)
        return views.upload(upload, made)


@router.post("/cancel")
def cancel(upload_id: str, services: ServicesDep, caller: SubmitterDep) -> dict[str, Any]:
    """Give an upload up; its parts are removed."""
    with services.sessions.begin() as session:
        upload = _pending(session, caller.tenant, upload_id)
        openai_files.close_upload(session, services.settings, upload, "cancelled")
        audit.record(session, caller.actor, "upload.cancel", upload_id)
        return views.upload(upload)


def _pending(session: Session, tenant: str, upload_id: str) -> OpenAIUpload:
    """The upload, locked. Raises APIError: there is none, or it takes nothing more."""
    upload = openai_files.get_upload(session, tenant, upload_id)
    if upload is None:
        raise not_found("upload", upload_id)
    status = upload.status
    if status == "pending" and upload.expires_at <= openai_files.now(session):
        status = "expired"
    if status != "pending":
        raise _not_pending(upload_id, status)
    return upload


def _not_pending(upload_id: str, status: str) -> APIError:
    return APIError(f"Upload '{upload_id}' is {status}.", status=400, code="invalid_status")


def _chunks(file: BinaryIO) -> Iterator[bytes]:
    while chunk := file.read(openai_files.CHUNK_BYTES):
        yield chunk
