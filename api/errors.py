"""Errors as responses: RFC 9457 problem details, from one table.

Every error has a stable `code` for programs and, where it is about a part of the request, the `field` that was wrong.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus

import sqlalchemy.exc
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from api.auth import Forbidden, Unauthenticated
from api.field_paths import field_path
from api.problem import FieldProblem, Problem
from db import errors
from db.redaction import shown
from db.stores.errors import StorageMissing, StorageRefused, StorageUnavailable, StorageUnsafe
from db.webhooks import WebhooksExceeded

log = logging.getLogger(__name__)
MEDIA_TYPE = "application/problem+json"
RETRY_AFTER_SECONDS = 5


class FieldError(Exception):
    """A domain error together with the request field that caused it."""

    def __init__(self, field: str, error: errors.DomainError) -> None:
        super().__init__(str(error))
        self.field = field
        self.error = error


class ResultNotFound(errors.DomainError):
    """The job has no finished result file of that name."""

    code = "result_not_found"

    def __init__(self, job_id: str, name: str) -> None:
        super().__init__(f"job {job_id} has no finished file {name!r}")


# Domain error -> status and title. The error's own `code`, message and attributes fill the rest.
TABLE: dict[type[errors.DomainError], tuple[HTTPStatus, str]] = {
    Unauthenticated: (HTTPStatus.UNAUTHORIZED, "No valid API key"),
    Forbidden: (HTTPStatus.FORBIDDEN, "The key may not do this"),
    errors.QuotaExceeded: (HTTPStatus.TOO_MANY_REQUESTS, "The tenant's quota is used up"),
    errors.RateExceeded: (HTTPStatus.TOO_MANY_REQUESTS, "Too many submissions"),
    errors.InvalidTenant: (HTTPStatus.UNPROCESSABLE_ENTITY, "The tenant cannot be as specified"),
    errors.TenantNotFound: (HTTPStatus.NOT_FOUND, "No such tenant"),
    errors.KeyNotFound: (HTTPStatus.NOT_FOUND, "No such key"),
    errors.InvalidKey: (HTTPStatus.UNPROCESSABLE_ENTITY, "The key cannot be made"),
    errors.WebhookNotFound: (HTTPStatus.NOT_FOUND, "No such webhook"),
    WebhooksExceeded: (HTTPStatus.TOO_MANY_REQUESTS, "Too many webhooks"),
    errors.InvalidWebhook: (HTTPStatus.UNPROCESSABLE_ENTITY, "The webhook cannot be made"),
    errors.JobNotFound: (HTTPStatus.NOT_FOUND, "No such job"),
    errors.PlanNotFound: (HTTPStatus.NOT_FOUND, "No such plan"),
    ResultNotFound: (HTTPStatus.NOT_FOUND, "No such file"),
    errors.UploadNotFound: (HTTPStatus.UNPROCESSABLE_ENTITY, "No such upload"),
    errors.IdempotencyConflict: (HTTPStatus.CONFLICT, "The idempotency key belongs to another job"),
    errors.JobNotCancellable: (HTTPStatus.CONFLICT, "The job can no longer be cancelled"),
    errors.WrongState: (HTTPStatus.CONFLICT, "The job is in another state"),
    errors.NothingToRetry: (HTTPStatus.CONFLICT, "No row failed"),
    errors.DatasetRefused: (HTTPStatus.UNPROCESSABLE_ENTITY, "The dataset's address is not allowed"),
    errors.InvalidDataset: (HTTPStatus.UNPROCESSABLE_ENTITY, "The dataset cannot be used"),
    errors.UploadTooLarge: (HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "The upload is too large"),
    StorageMissing: (HTTPStatus.UNPROCESSABLE_ENTITY, "The object store cannot be reached"),
    StorageRefused: (HTTPStatus.UNPROCESSABLE_ENTITY, "The object store refuses"),
    StorageUnsafe: (HTTPStatus.UNPROCESSABLE_ENTITY, "The object store cannot be used"),
    errors.LinkUnsupported: (HTTPStatus.UNPROCESSABLE_ENTITY, "The output folder cannot be used"),
    errors.ModelMissing: (HTTPStatus.UNPROCESSABLE_ENTITY, "The model is not available"),
    errors.InvalidJob: (HTTPStatus.UNPROCESSABLE_ENTITY, "The job cannot be run as specified"),
    errors.ScheduleNotFound: (HTTPStatus.NOT_FOUND, "No such schedule"),
    errors.ScheduleExists: (HTTPStatus.CONFLICT, "The name is taken"),
    errors.InvalidSchedule: (HTTPStatus.UNPROCESSABLE_ENTITY, "The schedule cannot work as specified"),
}


@contextmanager
def naming(field: str) -> Iterator[None]:
    """Domain errors raised inside are about this field of the request."""
    try:
        yield
    except errors.DomainError as error:
        raise FieldError(getattr(error, "field", None) or field, error) from error


def install(app: FastAPI) -> None:
    """Make every error of the app a problem response."""
    app.add_exception_handler(errors.DomainError, _domain)
    app.add_exception_handler(FieldError, _domain)
    app.add_exception_handler(RequestValidationError, _validation)
    app.add_exception_handler(HTTPException, _http)
    for kind in (
        sqlalchemy.exc.OperationalError,
        sqlalchemy.exc.InterfaceError,
        sqlalchemy.exc.InternalError,
        sqlalchemy.exc.TimeoutError,
    ):
        app.add_exception_handler(kind, _database_down)
    app.add_exception_handler(sqlalchemy.exc.DataError, _data)
    app.add_exception_handler(StorageUnavailable, _storage_down)
    app.add_exception_handler(Exception, _unexpected)


def respond(problem: Problem, headers: dict[str, str] | None = None) -> JSONResponse:
    content = problem.model_dump(exclude_none=True, exclude_defaults=False)
    if not problem.errors:
        del content["errors"]
    return JSONResponse(content, problem.status, headers, media_type=MEDIA_TYPE)


def _domain(request: Request, error: Exception) -> JSONResponse:
    field: str | None = None
    if isinstance(error, FieldError):
        field, error = error.field, error.error
    status, title = next(TABLE[kind] for kind in type(error).__mro__ if kind in TABLE)
    about = {name: getattr(error, name, None) for name in ("uri", "file", "column", "row")}
    problem = Problem(
        title=title,
        status=status,
        detail=str(error),
        code=getattr(error, "code", "error"),
        field=field or getattr(error, "field", None),
        **{name: value if isinstance(value, int) else str(value) for name, value in about.items() if value is not None},
    )
    return respond(problem, headers_of(error))


def headers_of(error: Exception) -> dict[str, str]:
    """What a client must know before its next try."""
    match error:
        case Unauthenticated():
            return {"WWW-Authenticate": "Bearer"}
        case errors.RateExceeded():
            return {"Retry-After": str(error.seconds)}
        case _:
            return {}


def _validation(request: Request, error: Exception) -> JSONResponse:
    """Pydantic's list as field paths in the request's own spelling: `recipe.labels`, `sampling.top_p`."""
    assert isinstance(error, RequestValidationError)
    problems = [FieldProblem(field=field_path(item["loc"]), message=item["msg"]) for item in error.errors()]
    first = problems[0]
    detail = "; ".join(f"{problem.field}: {problem.message}" for problem in problems[:5])
    return respond(
        Problem(
            title="The request is not valid",
            status=HTTPStatus.UNPROCESSABLE_ENTITY,
            detail=detail,
            code="invalid_request",
            field=first.field,
            errors=problems,
        )
    )


def _http(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    status = HTTPStatus(error.status_code)
    code = status.phrase.lower().replace(" ", "_")
    problem = Problem(title=status.phrase, status=status, detail=str(error.detail), code=code)
    return respond(problem, dict(error.headers or {}))


def _database_down(request: Request, error: Exception) -> JSONResponse:
    log.error("the database failed %s %s: %s", request.method, request.url.path, shown(str(error)))
    problem = Problem(
        title="The database is not available",
        status=HTTPStatus.SERVICE_UNAVAILABLE,
        detail="Try again in a few seconds; with an idempotency key a job is still created only once.",
        code="database_unavailable",
    )
    return respond(problem, {"Retry-After": str(RETRY_AFTER_SECONDS)})


def _data(request: Request, error: Exception) -> JSONResponse:
    """PostgreSQL takes no NUL in a text, wherever in the request it stood; SQLite does."""
    assert isinstance(error, sqlalchemy.exc.DataError)
    if "NUL" not in str(error.orig):
        return _unexpected(request, error)
    detail = "A text has a character that cannot be stored: NUL (U+0000)."
    problem = Problem(
        title="The request is not valid",
        status=HTTPStatus.UNPROCESSABLE_ENTITY,
        detail=detail,
        code="invalid_request",
    )
    return respond(problem)


def _storage_down(request: Request, error: Exception) -> JSONResponse:
    log.error("the object store failed %s %s: %s", request.method, request.url.path, error)
    problem = Problem(
        title="The object store is not available",
        status=HTTPStatus.SERVICE_UNAVAILABLE,
        detail=f"{error}; try again in a few seconds.",
        code=StorageUnavailable.code,
    )
    return respond(problem, {"Retry-After": str(RETRY_AFTER_SECONDS)})


def _unexpected(request: Request, error: Exception) -> JSONResponse:
    log.exception("unexpected error in %s %s", request.method, request.url.path, exc_info=error)
    return respond(
        Problem(
            title="Unexpected error",
            status=HTTPStatus.INTERNAL_SERVER_ERROR,
            detail="The server met an error it did not foresee; its log has the details.",
            code="internal_error",
        )
    )
