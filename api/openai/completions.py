"""/v1/chat/completions and /v1/completions, answered while the client waits: for trying a prompt before a batch.

Each call is a job of one row and of the highest priority, through the same queue and engine as all others. It waits for
a worker to be free like any job; a client that goes away cancels it.
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import anyio
import anyio.to_thread
import pyarrow as pa
import pyarrow.parquet as pq
from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response
from sqlalchemy import select
from sqlalchemy.orm import Session

from api.auth import Caller
from api.deps import Services, ServicesDep, SubmissionDep, SubmitterDep
from api.openai import work
from api.openai.answers import COLUMNS, Answers
from api.openai.conversion import SCHEMA
from api.openai.errors import APIError, OpenAIRoute, error_object
from db import audit, body_tokens, control, files, parquet
from db.errors import JobNotCancellable
from db.models import Job, JobStatus, Shard, ShardStatus
from db.openai_body import CHAT, COMPLETIONS, BodyRefused, parse

router = APIRouter(prefix="/v1", tags=["openai"], route_class=OpenAIRoute)
FIRST_PAUSE, LONGEST_PAUSE = 0.02, 0.5
T = TypeVar("T")
BODY = {"requestBody": {"required": True, "content": {"application/json": {"schema": {"type": "object"}}}}}


@router.post("/chat/completions", openapi_extra=BODY)
async def chat_completions(request: Request, services: ServicesDep, caller: SubmissionDep) -> Response:
    """Answer a conversation. What is supported is the same as in a batch."""
    return await _complete(request, services, caller, CHAT)


@router.post("/completions", openapi_extra=BODY)
async def completions(request: Request, services: ServicesDep, caller: SubmissionDep) -> Response:
    """Go on with a text."""
    return await _complete(request, services, caller, COMPLETIONS)


@router.post("/embeddings", openapi_extra=BODY)
async def embeddings(caller: SubmitterDep) -> Response:
    """Not supported: models here generate text."""
    raise APIError("Embeddings are not supported by this server.", code="unsupported_endpoint")


async def _complete(request: Request, services: Services, caller: Caller, endpoint: str) -> Response:
    body = _decoded(await request.body())
    model = _model(endpoint, body)
    seconds = services.settings.openai_timeout_seconds
    job = await _in_thread(partial(_submit, services, caller, endpoint, model, body))
    try:
        ended = await _wait(services, job, seconds, request.is_disconnected)
        if ended is None:
            await _in_thread(partial(_cancel, services, job))
            return _late(seconds)
        return await _in_thread(partial(_answer, services, ended, endpoint, model))
    finally:
        with anyio.CancelScope(shield=True):
            await _in_thread(partial(_forget, services, job))


async def _in_thread(call: Callable[[], T]) -> T:
    return await anyio.to_thread.run_sync(call)


def _decoded(text: bytes) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise APIError(f"The body is not JSON: {error}", code="invalid_json") from error


def _model(endpoint: str, body: Any) -> str:
    """The model that a sound body names. Raises APIError."""
    try:
        return parse(endpoint, body).model
    except BodyRefused as refusal:
        raise APIError(refusal.message, param=refusal.param, code=refusal.code) from refusal


def _submit(services: Services, caller: Caller, endpoint: str, model: str, body: Any) -> Job:
    call = f"call_{secrets.token_hex(8)}"
    table = pa.table([[call], [json.dumps(body)]], schema=SCHEMA)
    stored = work.store(services, caller.tenant, f"{call}.parquet", lambda sink: pq.write_table(table, sink))
    seconds = services.settings.openai_timeout_seconds
    tokens = body_tokens.of_body(endpoint, body)
    order = work.Order(caller.actor, endpoint, model, stored, seconds, tokens, work.HIGHEST)

    def note(session: Session, job: Job) -> bool:
        audit.record(session, caller.actor, "completion.create", job.id, model=model)
        return True

    return work.submit(services, order, note)


async def _wait(services: Services, job: Job, seconds: float, gone: Callable[[], Awaitable[bool]]) -> Job | None:
    """The job once it has ended; None when the time is over, or the client is gone."""
    until, pause = time.monotonic() + seconds, FIRST_PAUSE
    while time.monotonic() < until:
        found = await _in_thread(partial(_read, services, job))
        if found.status.terminal:
            return None if found.status in (JobStatus.EXPIRED, JobStatus.CANCELLED) else found
        if await gone():
            return None
        await anyio.sleep(pause)
        pause = min(1.2 * pause, LONGEST_PAUSE)
    return None


def _read(services: Services, job: Job) -> Job:
    with services.sessions.begin() as session:
        return session.get_one(Job, job.id)


def _cancel(services: Services, job: Job) -> None:
    try:
        with services.sessions.begin() as session:
            control.cancel(session, job.id, job.tenant)
    except JobNotCancellable:  # it ended just now
        return
    services.sweeper.nudge()


def _late(seconds: float) -> Response:
    """Not to be tried again at once: it would wait behind the same work."""
    message = f"No answer within {seconds:g} s: the workers are busy, or none is running. Use a batch for long work."
    body = {"error": error_object(message, 504, None, "request_timeout")}
    return JSONResponse(body, 504, {"x-should-retry": "false"})


def _answer(services: Services, job: Job, endpoint: str, model: str) -> Response:
    fingerprint = (job.prepared or {}).get("model_fingerprint")
    answers = Answers(job.id, endpoint, model, int(job.created_at), fingerprint and f"fp_{fingerprint}")
    row = _row(services, job)
    if row is None:
        status, body = _broken(job)
    elif row["error"] is not None:
        status, body = answers.refusal(row["error"])
    else:
        return JSONResponse(answers.body(row, 0))
    # What broke once with a row breaks again: the engine is deterministic, and the worker has tried it already.
    return JSONResponse({"error": body}, status, {"x-should-retry": "false"})


def _row(services: Services, job: Job) -> dict[str, Any] | None:
    """The one row of the result; None where the job broke off before it was written."""
    with services.sessions.begin() as session:
        done = select(Shard).where(Shard.job_id == job.id, Shard.status == ShardStatus.DONE)
        shard = session.scalar(done)
    if shard is None:
        return None
    (batch,) = parquet.read(Path(job.output_uri) / str(shard.part), 0, 1, COLUMNS)
    row: dict[str, Any] = batch.to_pylist()[0]
    return row


def _broken(job: Job) -> tuple[int, dict[str, Any]]:
    message = job.error_message or "The job broke off."
    if job.error_code == "model_missing":
        return 404, error_object(message, 404, "model", "model_not_found")
    return 500, error_object(message, 500, None, job.error_code)


def _forget(services: Services, job: Job) -> None:
    """The request is not kept as an upload; the job and its result stay."""
    upload_id = str(job.spec["input"]).removeprefix(files.SCHEME)
    with services.sessions.begin() as session:
        files.remove_upload(session, services.settings, upload_id, job.tenant)
