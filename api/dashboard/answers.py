"""What a form is answered with: another page, or a refusal as a person reads it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fastapi import Request
from fastapi.responses import HTMLResponse, RedirectResponse
from pydantic import ValidationError
from starlette.concurrency import run_in_threadpool

from api.dashboard import render
from api.dashboard.session import Viewer
from api.errors import FieldError
from api.field_paths import field_path
from db.errors import DomainError

Refusals = (DomainError, FieldError, ValidationError)


def words(error: Exception) -> str:
    """Field and reason, as a person reads them."""
    if isinstance(error, ValidationError):
        found = ((field_path(item["loc"] or ("form",)), item["msg"]) for item in error.errors())
        return "; ".join(f"{field}: {message.removeprefix('Value error, ')}" for field, message in found)
    if isinstance(error, FieldError):
        told = str(error.error)
        return told if told.startswith(error.field) else f"{error.field}: {told}"
    return str(error)


def to(path: str) -> RedirectResponse:
    return RedirectResponse(path, 303, render.HEADERS)


async def refusable(
    request: Request, viewer: Viewer, change: Callable[[], Any], place: Callable[[Any], str]
) -> HTMLResponse | RedirectResponse:
    """Do it and go to the page that shows it, or say why not."""
    try:
        return to(place(await run_in_threadpool(change)))
    except KeyError:
        title, message, status = "No such page", "There is nothing of this name.", 404
    except Refusals as error:
        title, message, status = "That cannot be done", words(error), 409
    return render.page(request, viewer, "refused.html", status=status, title=title, message=message)
