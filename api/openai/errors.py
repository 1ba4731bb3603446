"""Errors as OpenAI's clients read them: {"error": {"message", "type", "param", "code"}}, all four keys always.

`OpenAIRoute` gives every answer of a route an `x-request-id`, and turns every error into that shape, those of the rest
of the service included: their statuses stay as api.errors has them, except that what is 422 there is 400 here.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Awaitable, Callable, Coroutine
from http import HTTPStatus
from typing import Any

import sqlalchemy.exc
from fastapi import Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException

from api.errors import RETRY_AFTER_SECONDS, TABLE, FieldError, headers_of
from api.field_paths import field_path
from db.errors import DomainError

log = logging.getLogger(__name__)
TYPES = {
    401: "authentication_error",
    403: "permission_error",
    429: "rate_limit_error",
}


class APIError(Exception):
    """An error that a route of this face answers with."""

    def __init__(self, message: str, *, status: int = 400, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.param = param
        self.code = code


def not_found(kind: str, id: str) -> APIError:
    return APIError(f"No {kind} found with id '{id}'.", status=404, code="not_found")


def error_object(message: str, status: int, param: str | None = None, code: str | None = None) -> dict[str, object]:
    kind = TYPES.get(status, "invalid_request_error" if status < 500 else "server_error")
    return {"message": message, "type": kind, "param": param, "code": code}


class OpenAIRoute(APIRoute):
    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def answer(request: Request) -> Response:  # a coroutine function, as FastAPI looks whether it is one
            return await answering(request, lambda: handle(request))

        return answer


async def answering(request: Request, answer: Callable[[], Awaitable[Response]]) -> Response:
    """The response of `answer`, or of the error that it raises."""
    try:
        response = await answer()
    except Exception as error:
        response = _response(request, error)
    response.headers["x-request-id"] = f"req_{secrets.token_hex(16)}"
    return response


def _response(request: Request, error: Exception) -> Response:
    headers = headers_of(error)
    match error:
        case APIError(status=status, param=param, code=code):
            body = error_object(str(error), status, param, code)
        case FieldError(field=field, error=inner):
            status, body = _domain(inner, field)
        case DomainError():
            status, body = _domain(error, getattr(error, "field", None))
        case RequestValidationError():
            first = error.errors()[0]
            status, param = 400, field_path(first["loc"]) or None
            body = error_object(f"Invalid value for '{param}': {first['msg']}.", status, param, _code(first["type"]))
        case HTTPException(status_code=status, detail=detail):
            body = error_object(str(detail), status, None, HTTPStatus(status).phrase.lower().replace(" ", "_"))
        case sqlalchemy.exc.OperationalError() | sqlalchemy.exc.InterfaceError() | sqlalchemy.exc.TimeoutError():
            log.error("the database failed %s %s: %s", request.method, request.url.path, error)
            status, headers = 503, {"retry-after": str(RETRY_AFTER_SECONDS)}
            body = error_object("The database is not available.", status, None, "database_unavailable")
        case sqlalchemy.exc.DataError():  # NUL in a text, which PostgreSQL does not take
            status, body = (
                400,
                error_object("A text has a character that cannot be stored.", 400, None, "invalid_value"),
            )
        case _:
            log.exception("unexpected error in %s %s", request.method, request.url.path, exc_info=error)
            status = 500
            body = error_object("The server met an error it did not foresee; its log has the details.", status)
    if status == 409:
        headers["x-should-retry"] = "false"  # the client would repeat what cannot succeed
    return JSONResponse({"error": body}, status, headers)


def _domain(error: DomainError, field: str | None) -> tuple[int, dict[str, object]]:
    found = next((TABLE[kind][0] for kind in type(error).__mro__ if kind in TABLE), HTTPStatus.BAD_REQUEST)
    status = 400 if found == HTTPStatus.UNPROCESSABLE_ENTITY else int(found)
    return status, error_object(str(error), status, field, error.code)


def _code(kind: str) -> str:
    if kind == "missing":
        return "missing_required_parameter"
    if kind == "extra_forbidden":
        return "unknown_parameter"
    return "invalid_type" if kind.endswith("_type") else "invalid_value"
