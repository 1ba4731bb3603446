"""/v1/batches: create, read, list, cancel."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Header, Query
from sqlalchemy.orm import Session

from api.deps import ServicesDep, SubmissionDep, SubmitterDep
from api.openai import views
from api.openai.deps import KeeperDep, TenantDep
from api.openai.errors import APIError, OpenAIRoute, not_found
from api.openai.schemas import BatchRequest, check_endpoint, window_seconds
from api.schemas import IdempotencyKey
from db import audit, openai_batches, openai_files
from db.errors import JobNotCancellable
from db.models import TERMINAL, Job
from db.openai_models import Batch, BatchStatus
from db.progress import Progress, progress

router = APIRouter(prefix="/v1/batches", tags=["openai"], route_class=OpenAIRoute)


@router.post("")
def create(
    request: BatchRequest,
    services: ServicesDep,
    caller: SubmissionDep,
    keeper: KeeperDep,
    idempotency_key: Annotated[IdempotencyKey | None, Header()] = None,
) -> dict[str, Any]:
    """Take a batch; its file is checked after the answer, and one bad line fails the batch. The same key with the same
    batch gives the first one."""
    check_endpoint(request.endpoint)
    window = window_seconds(request.completion_window, services.settings)
    expiry = request.output_expires_after
    batch = Batch(
        tenant=caller.tenant,
        endpoint=request.endpoint,
        input_file_id=request.input_file_id,
        completion_window=request.completion_window,
        labels=request.metadata,
        output_expires_seconds=None if expiry is None else expiry.seconds,
        idempotency_key=idempotency_key,
    )
    with services.sessions.begin() as session:
        file = openai_files.get(session, caller.tenant, request.input_file_id)
        if file is None or file.purpose != "batch":
            message = f"Cannot find file '{request.input_file_id}' with the purpose 'batch'."
            raise APIError(message, param="input_file_id", code="invalid_request")
        made = openai_batches.create(session, batch, window)
        if made is batch:  # not an earlier request's with this key
            audit.record(session, caller.actor, "batch.create", made.id, file=request.input_file_id)
        view = _view(session, made)
    keeper.nudge()
    return view


@router.get("")
def listing(
    services: ServicesDep,
    tenant: TenantDep,
    limit: Annotated[int, Query(ge=1, le=100, description="Most entries of a page.")] = 20,
    after: Annotated[str | None, Query(description="Id of the last entry of the page before.")] = None,
) -> dict[str, Any]:
    """Newest first, a page at a time."""
    with services.sessions.begin() as session:
        cursor = None if after is None else openai_batches.get(session, tenant, after)
        if after is not None and cursor is None:
            raise APIError(f"No batch found with id '{after}'.", param="after", code="invalid_value")
        found = openai_batches.listing(session, tenant, limit=limit + 1, after=cursor)
        return views.page([_view(session, batch) for batch in found], limit)


@router.get("/{batch_id}")
def read(batch_id: str, services: ServicesDep, tenant: TenantDep, keeper: KeeperDep) -> dict[str, Any]:
    """A batch with its status and counts; `nightmill` in it has the job, and the file of what is finished so far."""
    with services.sessions.begin() as session:
        batch = _get(session, tenant, batch_id)
        job = openai_batches.job_of(session, batch)
        view = _view(session, batch)
    if job is not None and job.status in TERMINAL and not BatchStatus(batch.status).terminal:
        keeper.nudge()
    return view


@router.post("/{batch_id}/cancel")
def cancel(batch_id: str, services: ServicesDep, caller: SubmitterDep, keeper: KeeperDep) -> dict[str, Any]:
    """Stop a batch. Rows that are finished stay, and are in its output file at the end."""
    with services.sessions.begin() as session:
        batch = _get(session, caller.tenant, batch_id)
        view = _view(session, batch)
        if view["status"] not in ("validating", "in_progress", "cancelling", "cancelled"):
            raise _not_cancellable(view["status"])
        try:
            view = _view(session, openai_batches.cancel(session, batch))
            audit.record(session, caller.actor, "batch.cancel", batch_id)
        except JobNotCancellable:  # it ended between the two looks
            raise _not_cancellable("finalizing") from None
    services.sweeper.nudge()
    keeper.nudge()
    return view


def _not_cancellable(status: str) -> APIError:
    return APIError(f"Cannot cancel a batch with status '{status}'.", status=409, code="conflict")


def _get(session: Session, tenant: str, batch_id: str) -> Batch:
    batch = openai_batches.get(session, tenant, batch_id)
    if batch is None:
        raise not_found("batch", batch_id)
    return batch


def _view(session: Session, batch: Batch) -> dict[str, Any]:
    job: Job | None = openai_batches.job_of(session, batch)
    done = progress(session, [job.id])[job.id] if job is not None else Progress()
    return views.batch(batch, job, done)
