"""Small ASGI layers: a bound on request bodies, the time each answer takes, the names and pages that we answer to."""

from __future__ import annotations

import re
import time
from http import HTTPMethod, HTTPStatus

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api.auth import is_loopback
from api.errors import respond
from api.metrics import Metrics
from api.problem import Problem

JSON_BYTES = 8 << 20
UPLOAD = "/v1/uploads"  # the file may be the whole body
FORMS = re.compile(r"/v1/files|/v1/uploads/[^/]+/parts|/submit")  # the file is a part of the form
SAFE = ("GET", "HEAD", "OPTIONS", "TRACE")
HOST = re.compile(r"(?P<name>\[[0-9a-fA-F:.]+\]|[A-Za-z0-9._-]+)(:\d*)?")
FORM_BYTES = 1 << 16  # what multipart adds around the file


class BodyLimit:
    """Answers 413 once a body is larger than its route allows, declared or not; the rest is not read."""

    def __init__(self, app: ASGIApp, upload_bytes: int) -> None:
        self.app = app
        self.upload_bytes = upload_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        limit = self.upload_bytes + FORM_BYTES if _is_file(scope) else JSON_BYTES
        seen = 0

        async def bounded() -> Message:
            nonlocal seen
            message = await receive()
            seen += len(message.get("body", b""))
            # Raised where the route reads, so it becomes an ordinary problem response.
            if seen > limit or _declared(scope) > limit:
                raise HTTPException(413, f"The body is larger than {limit} bytes.")
            return message

        await self.app(scope, bounded, send)


class Timing:
    """Observes each answer under its route's pattern, so that neither ids nor invented methods become label values."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self.app = app
        self.metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        started = time.perf_counter()
        status = 500

        async def observed(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self.app(scope, receive, observed)
        finally:
            route = getattr(scope.get("route"), "path", "unmatched")
            seconds = time.perf_counter() - started
            method = scope["method"] if scope["method"] in HTTPMethod.__members__ else "other"
            self.metrics.requests.labels(method, route, str(status)).observe(seconds)


class OwnNames:
    """Answers 421 to a request that is meant for another host.

    Where no key is asked for, a web page could otherwise have its own name point to 127.0.0.1 (DNS rebinding), and use
    this API from the browser of whoever opens the page.
    """

    def __init__(self, app: ASGIApp, host: str) -> None:
        self.app = app
        self.host = host

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan" or self._ours(name := _host(scope)):
            await self.app(scope, receive, send)
            return
        problem = Problem(
            title="The request is for another host",
            status=HTTPStatus.MISDIRECTED_REQUEST,
            detail=f"Without keys the API answers to localhost, loopback addresses and {self.host!r}, not to {name!r}; "
            "use one of these, or set NIGHTMILL_AUTH=true.",
            code="other_host",
        )
        await respond(problem)(scope, receive, send)

    def _ours(self, name: str) -> bool:
        return is_loopback(name) or name.endswith(".localhost") or name == self.host.lower()


class OwnPages:
    """Answers 403 to a change that a page of another site asks for.

    Where no key is asked for, the browser of whoever opens the page would otherwise submit, pause and upload for it:
    forms and plain text are sent without asking first.
    """

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] in SAFE or not is_foreign(headers := Headers(scope=scope)):
            await self.app(scope, receive, send)
            return
        problem = Problem(
            title="The request is from another site",
            status=HTTPStatus.FORBIDDEN,
            detail=f"Without keys a browser may change things from the API's own pages, not from {headers['origin']!r}"
            "; programs send no Origin header.",
            code="other_origin",
        )
        await respond(problem)(scope, receive, send)


def is_foreign(headers: Headers) -> bool:
    """Whether a browser says that a page of another site, or one without a name (`null`), is behind the request."""
    origin, host = headers.get("origin"), headers.get("host")
    return origin is not None and (not host or origin.partition("://")[2] != host)


def _host(scope: Scope) -> str:
    """The Host header without its port, in small letters; empty where it is none."""
    found = HOST.fullmatch(Headers(scope=scope).get("host", ""))
    return found["name"].lower() if found else ""


def _is_file(scope: Scope) -> bool:
    """Whether the route writes the body to the disk as it comes. Any other body lies in memory, before the key is
    looked at: a body of JSON also where the route takes files, and a form without files."""
    kind = Headers(scope=scope).get("content-type", "").lower()
    if scope["path"] == UPLOAD:
        return not kind.startswith("application/json")
    return kind.startswith("multipart/form-data") and FORMS.fullmatch(scope["path"]) is not None


def _declared(scope: Scope) -> int:
    """Content-Length, or 0 where the body comes in chunks."""
    value = dict(scope["headers"]).get(b"content-length", b"0")
    return int(value) if value.isdigit() else 0
