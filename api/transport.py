"""How the client talks to the server: retries, problems, checked downloads."""

from __future__ import annotations

import hashlib
import random
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, TypeAlias

import httpx
from pydantic import ValidationError

from api.problem import Problem

RETRIED = frozenset({429, 502, 503, 504})
MAX_PAUSE_SECONDS = 10.0
CHUNK_BYTES = 1 << 20
Told: TypeAlias = Callable[[int], None]  # hears how many bytes each piece of a transfer has


class ClientError(Exception):
    """Any error of this client."""


class ServerUnreachable(ClientError):
    """Nothing answered at the address, after every retry."""

    def __init__(self, url: str, reason: str) -> None:
        super().__init__(f"no answer from {url}: {reason}")
        self.url = url


class RequestRefused(ClientError):
    """The server answered with a problem; `problem.code` is stable, `problem.field` names what was wrong."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.detail)
        self.problem = problem


class ResultsPartial(ClientError):
    """The job goes on, and what it has finished so far was not asked for."""

    def __init__(self, job_id: str, status: str) -> None:
        super().__init__(f"job {job_id} is {status}: its results are not complete; partial=True gives what is there")
        self.job_id = job_id
        self.status = status


class DownloadCorrupt(ClientError):
    """A downloaded file does not have the bytes that the worker wrote."""

    def __init__(self, name: str, found: str, expected: str) -> None:
        super().__init__(f"{name} arrived with SHA-256 {found}, not {expected}")
        self.name = name


class Transport:
    """HTTP calls to one server. `retries` counts after the first try, with growing pauses in between.

    No redirect is followed: the key must reach no other server.
    """

    def __init__(
        self, url: str, *, api_key: str, timeout: float, retries: int, transport: httpx.BaseTransport | None
    ) -> None:
        self.url = url.rstrip("/")
        self._retries = retries
        headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self._http = httpx.Client(base_url=self.url, headers=headers, timeout=timeout, transport=transport)

    def close(self) -> None:
        self._http.close()

    def probe(self, path: str) -> httpx.Response | None:
        """One short GET without retries; None when nothing answers."""
        try:
            return self._http.get(path, timeout=5.0)
        except httpx.HTTPError:
            return None

    def fetch(self, url: str, path: Path, sha256: str | None, told: Told = lambda num_bytes: None) -> Path:
        """Download to `path`, which appears whole or not at all. `told` hears of each piece that came, those of a try
        that broke too. Raises DownloadCorrupt."""
        digest = ""
        partial = path.with_name(f".{path.name}.{uuid.uuid4().hex}")

        def receive(answer: httpx.Response) -> None:
            nonlocal digest
            hashed = hashlib.sha256()  # Anew: a retried download starts again.
            with partial.open("wb") as file:
                for chunk in answer.iter_bytes(CHUNK_BYTES):
                    hashed.update(chunk)
                    file.write(chunk)
                    told(len(chunk))
            digest = hashed.hexdigest()

        try:
            self.call("GET", url, receive=receive)
            if sha256 is not None and digest != sha256:
                raise DownloadCorrupt(path.name, digest, sha256)
            partial.replace(path)
        finally:
            partial.unlink(missing_ok=True)
        return path

    def call(
        self,
        method: str,
        path: str,
        *,
        content: Callable[[], Iterable[bytes]] | None = None,
        receive: Callable[[httpx.Response], None] | None = None,
        **options: Any,
    ) -> httpx.Response:
        """One call with retries. `content` is made anew for each try; `receive` reads a streamed answer."""
        for attempt in range(self._retries + 1):
            last = attempt == self._retries
            body = None if content is None else content()
            try:
                with self._http.stream(method, path, content=body, **options) as answer:
                    if answer.is_success and receive is not None:
                        receive(answer)
                        return answer
                    answer.read()
            except httpx.TransportError as error:
                if last:
                    raise ServerUnreachable(self.url, str(error) or type(error).__name__) from error
                _pause(attempt, None)
                continue
            if answer.is_success:
                return answer
            if last or answer.status_code not in RETRIED:
                raise RequestRefused(_problem(answer))
            _pause(attempt, answer.headers.get("retry-after"))
        raise AssertionError("the loop returns or raises")


def _pause(attempt: int, retry_after: str | None) -> None:
    spread = 0.5 + random.random() / 2  # noqa: S311 - it spreads retries and hides nothing
    seconds = float(retry_after) if retry_after and retry_after.isdigit() else 0.2 * 2**attempt * spread
    time.sleep(min(seconds, MAX_PAUSE_SECONDS))


def _problem(answer: httpx.Response) -> Problem:
    """The problem of an answer; made up where something else than our server answered."""
    try:
        return Problem.model_validate(_as_problem(answer.json(), answer.status_code))
    except (ValidationError, ValueError):
        detail = f"{answer.request.url} answered {answer.status_code} {answer.reason_phrase}; is it a Nightmill server?"
        return Problem(title=answer.reason_phrase, status=answer.status_code, detail=detail, code="not_a_problem")


def _as_problem(found: Any, status: int) -> Any:
    """The errors of the OpenAI routes have a shape of their own."""
    error = found.get("error") if isinstance(found, dict) else None
    if not isinstance(error, dict):
        return found
    code, message = error.get("code") or "error", error.get("message")
    return {"title": error.get("type"), "status": status, "detail": message, "code": code, "field": error.get("param")}


def told_of(pieces: Iterator[bytes], told: Told) -> Iterator[bytes]:
    for piece in pieces:
        yield piece
        told(len(piece))


def chunks(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while chunk := file.read(CHUNK_BYTES):
            yield chunk
