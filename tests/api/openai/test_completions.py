"""Calls that wait for their answer, where no answer comes; and that nothing of a call is left behind."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from sqlalchemy import select

from api import auth
from api.openai.completions import chat_completions
from db.accounts import Role
from db.models import Job, JobStatus, Upload
from tests.api.openai.office import Desk
from tests.api.openai.rig import chat
from tests.api.openai.test_wire import error

BODY = chat("a", "hello")["body"]


def jobs(desk: Desk) -> list[Job]:
    with desk.office.sessions.begin() as session:
        return list(session.scalars(select(Job)))


def uploads(desk: Desk) -> list[Any]:
    with desk.office.sessions.begin() as session:
        rows = list(session.scalars(select(Upload)))
    return [*rows, *desk.services.settings.uploads.glob("*.parquet")]


def test_no_worker_answers_in_time(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(desk.services.settings.__dict__, "openai_timeout_seconds", 0.3)
    answer = desk.http.post("/v1/chat/completions", json=BODY)
    assert error(answer, 504)["code"] == "request_timeout"
    assert answer.headers["x-should-retry"] == "false"
    (job,) = jobs(desk)
    assert (job.status, job.priority, job.num_rows) == (JobStatus.CANCELLED, 100, 1)
    assert uploads(desk) == []


class Caller:
    """A request whose client has gone away."""

    async def body(self) -> bytes:
        return json.dumps(BODY).encode()

    async def is_disconnected(self) -> bool:
        return True


def test_a_client_that_goes_away_cancels_its_job(desk: Desk) -> None:
    gone: Any = Caller()
    asyncio.run(chat_completions(gone, desk.services, auth.Caller("default", Role.ADMIN, None)))
    assert [job.status for job in jobs(desk)] == [JobStatus.CANCELLED]
    assert uploads(desk) == []


@pytest.mark.parametrize(
    ("path", "body", "param", "code"),
    [
        ("chat/completions", {"messages": []}, "model", "invalid_request"),
        ("chat/completions", {**BODY, "stream": True}, "stream", "streaming_unsupported"),
        ("chat/completions", {**BODY, "n": 0}, "n", "invalid_value"),
        ("completions", {"model": "fake", "prompt": ["a", "b"]}, "prompt", "unsupported_value"),
        ("completions", {"model": "fake", "prompt": "a", "echo": True}, "echo", "unsupported_parameter"),
        ("chat/completions", [], None, "invalid_type"),
        ("embeddings", {"model": "fake", "input": "x"}, None, "unsupported_endpoint"),
    ],
)
def test_calls_that_are_refused(desk: Desk, path: str, body: Any, param: str | None, code: str) -> None:
    found = error(desk.http.post(f"/v1/{path}", json=body), 400)
    assert (found["param"], found["code"]) == (param, code)
    assert jobs(desk) == []


def test_a_body_that_is_no_json(desk: Desk) -> None:
    sent = desk.http.post("/v1/completions", content=b"{", headers={"Content-Type": "application/json"})
    assert error(sent, 400)["code"] == "invalid_json"
