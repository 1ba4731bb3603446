"""The thread that brings batches on: it checks their files and makes jobs of them, closes those whose jobs have ended,
and removes what has expired. Any number of processes may do so at once (db.openai_batches has the leases)."""

from __future__ import annotations

import logging
import math
import threading
import time
from typing import Any

import structlog

from api.deps import Services
from api.openai import rendering, work
from api.openai.conversion import Conversion, FileRefused
from api.openai.rendering import Kind
from db import openai_batches, openai_files, openai_retention
from db.audit import Actor
from db.errors import DomainError
from db.models import Job, JobStatus
from db.openai_models import Batch, BatchStatus

log = logging.getLogger(__name__)
BEAT_SECONDS = 10.0
RETRY_SECONDS = 5.0
LEAST_DEADLINE = 1.0
TIDY_SECONDS = 600.0  # between two looks for datasets that have had their time


class Lost(Exception):
    """The batch was cancelled, or is another process's by now."""


class Keeper(threading.Thread):
    """Looks every `sweep_seconds`, and at once after `nudge`. Errors are logged and never fatal."""

    def __init__(self, services: Services) -> None:
        super().__init__(name="keeper", daemon=True)
        self._services = services
        self._wake = threading.Event()
        self._stopping = False
        self._beaten_at = 0.0
        self._tidied_at = -math.inf

    def run(self) -> None:
        while not self._stopping:
            try:
                self.keep()
            except Exception as error:  # The thread must outlive every failure of database and disk.
                log.warning("batches are not brought on, and it is tried again: %s", error)
            self._wake.wait(self._services.settings.sweep_seconds)
            self._wake.clear()

    def nudge(self) -> None:
        self._wake.set()

    def stop(self) -> None:
        self._stopping = True
        self._wake.set()
        if self.is_alive():
            self.join(timeout=10)

    def keep(self) -> int:
        """Do what is due; returns how many batches were brought on."""
        count = 0
        while not self._stopping:
            with self._services.sessions.begin() as session:
                batch = openai_batches.due(session)
            if batch is None:
                break
            count += 1
            with structlog.contextvars.bound_contextvars(batch=batch.id, job=batch.job_id):
                self._bring_on(batch)
        with self._services.sessions.begin() as session:
            openai_files.expire(session, self._services.settings)
        if time.monotonic() - self._tidied_at > TIDY_SECONDS:
            self._tidied_at = time.monotonic()
            with self._services.sessions.begin() as session:
                openai_retention.remove_datasets(session, self._services.settings)
        return count

    def _bring_on(self, batch: Batch) -> None:
        self._beaten_at = time.monotonic()
        try:
            if batch.job_id is None:
                self._check(batch)
            else:
                self._close(batch)
        except (Lost, work.CalledOff):
            log.info("the batch is not ours to go on with")
        except Exception:
            log.exception("the batch broke off, and is tried again")
            with self._services.sessions.begin() as session:
                openai_batches.give_back(session, batch, RETRY_SECONDS)

    def _beat(self, batch: Batch) -> None:
        """Raises Lost."""
        if self._stopping:
            with self._services.sessions.begin() as session:
                openai_batches.give_back(session, batch)
            raise Lost
        if time.monotonic() - self._beaten_at > BEAT_SECONDS:
            self._beaten_at = time.monotonic()
            with self._services.sessions.begin() as session:
                if not openai_batches.beat(session, batch):
                    raise Lost

    # -- from a file to a job ------------------------------------------------------------------------------------------

    def _check(self, batch: Batch) -> None:
        services, settings = self._services, self._services.settings
        with services.sessions.begin() as session:
            file = openai_files.get(session, batch.tenant, batch.input_file_id)
            left = batch.expires_at - openai_files.now(session)
        if file is None:
            self._fail(batch, [_error("invalid_request", f"Cannot find file '{batch.input_file_id}'.", "file_id")])
            return
        if left <= 0:
            self._end(batch, BatchStatus.EXPIRED)
            return
        made = Conversion(
            batch.endpoint, settings.openai_max_requests, settings.max_prompt_bytes, lambda: self._beat(batch)
        )
        source = openai_files.file_path(settings, file.id)
        try:
            stored = work.store(services, batch.tenant, f"{batch.id}.parquet", lambda sink: made.write(source, sink))
        except FileRefused as refusal:
            self._fail(batch, refusal.errors)
            return
        assert made.model is not None, "a file without a request is refused"
        actor = Actor(batch.tenant, None, "batch")  # who made the batch stands with its creation
        left = max(left, LEAST_DEADLINE)
        order = work.Order(actor, batch.endpoint, made.model, stored, left, made.answer_tokens)
        self._submit(batch, order)

    def _submit(self, batch: Batch, order: work.Order) -> None:
        def hand_over(session: Any, job: Job) -> bool:
            return openai_batches.hand_over(session, batch, job.id, order.model)

        try:
            work.submit(self._services, order, hand_over)
        except DomainError as error:
            self._fail(batch, [_error(error.code, str(error), getattr(error, "field", None))])

    # -- from a job to files -------------------------------------------------------------------------------------------

    def _close(self, batch: Batch) -> None:
        with self._services.sessions.begin() as session:
            job = openai_batches.job_of(session, batch)
        assert job is not None, "a batch keeps its job"
        if job.status is JobStatus.FAILED and not _has_rows(job):
            self._fail(batch, [_refusal(job)])
            return
        with self._services.sessions.begin() as session:
            if not openai_batches.begin_closing(session, batch):
                raise Lost
        sizes: dict[str, int] = {}
        counts: dict[str, int] = {}
        for kind, file_id in ((Kind.OUTPUT, batch.output_file_id), (Kind.ERROR, batch.error_file_id)):
            sizes[file_id] = counts[file_id] = 0
            for line in rendering.lines(self._services, batch, job, kind):
                self._beat(batch)
                sizes[file_id] += len(line)
                counts[file_id] += 1
        status, errors = _ending(job)
        found = {"output_lines": counts[batch.output_file_id], "error_lines": counts[batch.error_file_id]}
        self._end(batch, status, sizes, errors=errors, **found)

    def _fail(self, batch: Batch, errors: list[dict[str, Any]]) -> None:
        self._end(batch, BatchStatus.FAILED, errors={"object": "list", "data": errors})

    def _end(self, batch: Batch, status: BatchStatus, sizes: dict[str, int] | None = None, **values: Any) -> None:
        with self._services.sessions.begin() as session:
            for file in openai_batches.output_files(batch, sizes or {}):
                openai_files.create(session, batch.tenant, file, batch.output_expires_seconds)
            if not openai_batches.end(session, batch, status, **values):
                raise Lost


def _ending(job: Job) -> tuple[BatchStatus, dict[str, Any] | None]:
    """A job of which no row succeeded has failed; a batch whose rows were all tried is completed all the same."""
    match job.status:
        case JobStatus.EXPIRED:
            return BatchStatus.EXPIRED, None
        case JobStatus.CANCELLED:
            return BatchStatus.CANCELLED, None
        case JobStatus.FAILED if job.rows_failed < job.num_rows:
            return BatchStatus.FAILED, {"object": "list", "data": [_refusal(job)]}
    return BatchStatus.COMPLETED, None


def _has_rows(job: Job) -> bool:
    """Whether any row of a failed job was written."""
    return job.rows_succeeded + job.rows_failed > 0


def _refusal(job: Job) -> dict[str, Any]:
    """Why a job failed as a whole, as a batch shows it."""
    code, message = job.error_code or "job_failed", job.error_message or "The job broke off."
    if code == "model_missing":
        return _error("model_not_found", message, "body.model", 1)
    return _error(code, message, None)


def _error(code: str, message: str, param: str | None, line: int | None = None) -> dict[str, Any]:
    return {"code": code, "message": message, "param": param, "line": line}
