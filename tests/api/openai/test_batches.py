"""Batches by the wire contract: every status with its times and files, and what each line of a file becomes."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import select

from api.openai import work
from db import control, jobs, openai_batches
from db.models import Job, Upload
from tests.api.openai.office import Desk
from tests.api.openai.rig import chat

TIMES = ("in_progress", "finalizing", "completed", "failed", "expired", "cancelling", "cancelled")


def times(batch: dict[str, Any]) -> list[str]:
    """The moments that a batch has been through."""
    return [name for name in TIMES if batch[f"{name}_at"] is not None]


def counts(batch: dict[str, Any]) -> tuple[int, int, int]:
    found = batch["request_counts"]
    return found["total"], found["completed"], found["failed"]


@pytest.mark.parametrize("database", ["sqlite", "postgres"], indirect=True)
def test_the_life_of_a_batch(desk: Desk) -> None:
    file_id = desk.send([chat(f"r{i}", f"text {i}", model="gpt-4o-mini") for i in range(5)])
    batch = desk.create(file_id, metadata={"night": "1"})
    assert (batch["status"], counts(batch), times(batch)) == ("validating", (0, 0, 0), [])
    assert (batch["object"], batch["completion_window"], batch["metadata"]) == ("batch", "24h", {"night": "1"})
    assert batch["expires_at"] - batch["created_at"] == 86_400
    assert (batch["errors"], batch["output_file_id"], batch["error_file_id"]) == (None, None, None)

    desk.checked(batch["id"])
    desk.work(until=lambda wakeup: wakeup.task == "run")
    running = desk.read(batch["id"])
    assert (running["status"], counts(running), running["model"]) == ("in_progress", (5, 0, 0), "gpt-4o-mini")
    desk.work(until=lambda wakeup: wakeup.task == "merge")
    finalizing = desk.read(batch["id"])
    assert (finalizing["status"], counts(finalizing)) == ("finalizing", (5, 5, 0))

    done = desk.finish(batch["id"])
    assert (done["status"], counts(done)) == ("completed", (5, 5, 0))
    assert times(done) == ["in_progress", "finalizing", "completed"]
    assert done["error_file_id"] is None
    assert done["usage"]["total_tokens"] == done["usage"]["input_tokens"] + done["usage"]["output_tokens"] == 75
    lines, headers = desk.lines(done["output_file_id"])
    assert [line["custom_id"] for line in lines] == [f"r{i}" for i in range(5)]
    assert [line["error"] for line in lines] == [None] * 5
    body = lines[3]["response"]["body"]
    assert (lines[3]["response"]["status_code"], body["object"], body["model"]) == (
        200,
        "chat.completion",
        "gpt-4o-mini",
    )
    assert body["choices"] == [
        {
            "index": 0,
            "message": {"role": "assistant", "content": "TEXT 3", "refusal": None},
            "logprobs": None,
            "finish_reason": "stop",
        }
    ]
    assert (headers["x-incomplete"], headers["x-last-line"]) == ("false", "5")
    file = desk.http.get(f"/v1/files/{done['output_file_id']}").json()
    assert (file["purpose"], file["bytes"]) == ("batch_output", int(headers["content-length"]))


def test_failed_rows_have_lines_in_the_error_file(desk: Desk) -> None:
    done = desk.run([chat("a", "one"), chat("b", "x" * 5000), chat("c", "[]", response_format={"type": "json_object"})])
    assert (done["status"], counts(done)) == ("completed", (3, 1, 2))
    (good,), _ = desk.lines(done["output_file_id"])
    assert good["custom_id"] == "a"
    (long, invalid), _ = desk.lines(done["error_file_id"])
    assert (long["custom_id"], long["error"], long["response"]["status_code"]) == ("b", None, 400)
    assert long["response"]["body"]["error"] == {
        "message": "the prompt has 5003 tokens; the model takes 4096 in all",
        "type": "invalid_request_error",
        "param": "messages",
        "code": "context_length_exceeded",
    }
    assert (invalid["response"]["status_code"], invalid["response"]["body"]["error"]["type"]) == (500, "server_error")


def test_a_batch_whose_every_row_failed_is_completed_without_output(desk: Desk) -> None:
    """The contract has it so; the counts and the job say what it was."""
    done = desk.run([chat("a", "x" * 5000)])
    assert (done["status"], counts(done), done["output_file_id"]) == ("completed", (1, 0, 1), None)
    assert (done["errors"], done["nightmill"]["job_status"]) == (None, "failed")
    assert len(desk.lines(done["error_file_id"])[0]) == 1


def test_a_batch_whose_time_is_over_keeps_what_is_done(desk: Desk) -> None:
    batch = desk.start([chat(f"r{i}", f"text {i}") for i in range(6)])
    done_shards: list[Any] = []
    desk.work(until=lambda wakeup: wakeup.task == "run" and bool(done_shards.append(wakeup) or len(done_shards) > 1))
    desk.pass_deadline(batch)
    ended = desk.finish(batch["id"])
    assert (ended["status"], counts(ended)) == ("expired", (6, 2, 4))
    assert times(ended) == ["in_progress", "finalizing", "expired"]
    assert [line["custom_id"] for line in desk.lines(ended["output_file_id"])[0]] == ["r0", "r1"]
    lost = desk.lines(ended["error_file_id"])[0]
    assert [line["custom_id"] for line in lost] == ["r2", "r3", "r4", "r5"]
    assert {line["response"] is None and line["error"]["code"] for line in lost} == {"batch_expired"}


def test_a_batch_that_expires_before_its_job_began(desk: Desk) -> None:
    batch = desk.start([chat("a", "one")])
    desk.pass_deadline(batch)
    ended = desk.finish(batch["id"])
    assert (ended["status"], counts(ended), ended["output_file_id"]) == ("expired", (1, 0, 1), None)
    assert desk.lines(ended["error_file_id"])[0][0]["error"]["code"] == "batch_expired"


@pytest.mark.parametrize("database", ["sqlite", "postgres"], indirect=True)
def test_cancelling_keeps_what_is_done(desk: Desk) -> None:
    batch = desk.start([chat(f"r{i}", f"text {i}") for i in range(6)])
    seen: list[Any] = []
    desk.work(until=lambda wakeup: wakeup.task == "run" and bool(seen.append(wakeup) or len(seen) > 1))
    answer = desk.http.post(f"/v1/batches/{batch['id']}/cancel")
    assert (answer.status_code, answer.json()["status"]) == (200, "cancelling")
    ended = desk.finish(batch["id"])
    assert (ended["status"], counts(ended)) == ("cancelled", (6, 2, 4))
    assert "cancelling" in times(ended)
    assert "cancelled" in times(ended)
    assert [line["custom_id"] for line in desk.lines(ended["output_file_id"])[0]] == ["r0", "r1"]
    lost = desk.lines(ended["error_file_id"])[0]
    assert [line["custom_id"] for line in lost] == ["r2", "r3", "r4", "r5"]
    assert {line["error"]["code"] for line in lost} == {"batch_cancelled"}
    again = desk.http.post(f"/v1/batches/{batch['id']}/cancel")
    assert (again.status_code, again.json()["status"]) == (200, "cancelled")


def test_cancelling_before_the_file_is_checked(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(desk.keeper, "nudge", lambda: None)
    batch = desk.create(desk.send([chat("a", "one")]))
    answer = desk.http.post(f"/v1/batches/{batch['id']}/cancel").json()
    assert (answer["status"], answer["nightmill"]["job_id"]) == ("cancelled", None)
    assert desk.keeper.keep() == 0


@pytest.mark.parametrize("status", ["completed", "failed", "expired"])
def test_what_has_ended_cannot_be_cancelled(desk: Desk, status: str) -> None:
    if status == "completed":
        batch = desk.run([chat("a", "one")])
    elif status == "failed":
        batch = desk.run(["{"])
    else:
        batch = desk.start([chat("a", "one")])
        desk.pass_deadline(batch)
        batch = desk.finish(batch["id"])
    answer = desk.http.post(f"/v1/batches/{batch['id']}/cancel")
    assert (answer.status_code, answer.headers["x-should-retry"]) == (409, "false")
    assert answer.json() == {
        "error": {
            "message": f"Cannot cancel a batch with status '{status}'.",
            "type": "invalid_request_error",
            "param": None,
            "code": "conflict",
        }
    }


def test_finished_lines_can_be_read_while_the_batch_runs(desk: Desk) -> None:
    batch = desk.start([chat(f"r{i}", f"text {i}") for i in range(6)])
    partial = batch["nightmill"]["partial_output_file_id"]
    lines, headers = desk.lines(partial)
    assert (lines, headers["x-incomplete"], headers["x-last-line"]) == ([], "true", "0")
    seen: list[Any] = []
    desk.work(until=lambda wakeup: wakeup.task == "run" and bool(seen.append(wakeup) or len(seen) > 2))
    lines, headers = desk.lines(partial)
    assert [line["custom_id"] for line in lines] == ["r0", "r1", "r2", "r3"]
    assert (headers["x-incomplete"], headers["x-last-line"]) == ("true", "4")
    assert "content-length" not in headers
    ended = desk.finish(batch["id"])
    rest, headers = desk.lines(partial, offset=4)
    assert [line["custom_id"] for line in rest] == ["r4", "r5"]
    assert (headers["x-incomplete"], headers["x-last-line"]) == ("false", "6")
    assert desk.lines(ended["output_file_id"])[0] == lines + rest
    assert desk.lines(partial, offset=5)[0] == rest[1:]


def test_a_model_that_is_missing_fails_the_batch(desk: Desk) -> None:
    failed = desk.run([chat("a", "one", model="gone")])
    assert (failed["status"], times(failed), failed["output_file_id"]) == ("failed", ["failed"], None)
    (error,) = failed["errors"]["data"]
    assert (error["code"], error["param"], error["line"]) == ("model_not_found", "body.model", 1)


def test_a_job_that_broke_off_fails_the_batch_and_keeps_its_rows(desk: Desk) -> None:
    batch = desk.start([chat(f"r{i}", "x") for i in range(4)])
    seen: list[Any] = []
    desk.work(until=lambda wakeup: wakeup.task == "run" and bool(seen.append(wakeup) or len(seen) > 1))
    with desk.office.sessions.begin() as session:
        jobs.fail_job(session, batch["nightmill"]["job_id"], code="engine_failed", message="the engine failed")
    failed = desk.finish(batch["id"])
    assert (failed["status"], counts(failed)) == ("failed", (4, 2, 2))
    assert failed["errors"]["data"][0]["code"] == "engine_failed"
    assert len(desk.lines(failed["output_file_id"])[0]) == 2
    assert [line["error"]["code"] for line in desk.lines(failed["error_file_id"])[0]] == ["engine_failed"] * 2


def test_a_paused_job_is_a_batch_in_progress(desk: Desk) -> None:
    batch = desk.start([chat("a", "one")])
    desk.work(until=lambda wakeup: wakeup.task == "run")
    with desk.office.sessions.begin() as session:
        control.pause(session, batch["nightmill"]["job_id"], "default")
    assert desk.read(batch["id"])["status"] == "in_progress"


def test_the_file_is_gone_before_it_is_checked(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(desk.keeper, "nudge", lambda: None)
    file_id = desk.send([chat("a", "one")])
    batch = desk.create(file_id)
    assert desk.http.delete(f"/v1/files/{file_id}").json() == {"id": file_id, "object": "file", "deleted": True}
    desk.keeper.keep()
    failed = desk.read(batch["id"])
    assert failed["status"] == "failed"
    assert failed["errors"]["data"][0] == {
        "code": "invalid_request", "message": f"Cannot find file '{file_id}'.", "param": "file_id", "line": None
    }  # fmt: skip


def test_a_checker_that_died_is_followed_by_another(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first one's late word changes nothing: there is one job."""
    monkeypatch.setattr(desk.keeper, "nudge", lambda: None)
    batch = desk.create(desk.send([chat("a", "one")]))
    with desk.office.sessions.begin() as session:
        dead = openai_batches.due(session)
    assert dead is not None
    assert desk.keeper.keep() == 0  # The lease holds.
    with desk.office.sessions.begin() as session:
        openai_batches.give_back(session, dead)
    assert desk.keeper.keep() == 1
    with desk.office.sessions.begin() as session:
        assert not openai_batches.hand_over(session, dead, "job_other", "m")
    assert desk.finish(batch["id"])["status"] == "completed"


def test_a_batch_that_was_cancelled_while_it_was_checked_leaves_no_dataset(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(desk.keeper, "nudge", lambda: None)
    batch = desk.create(desk.send([chat("a", "x")]))
    store = work.store

    def cancelled_meanwhile(*arguments: Any) -> Any:
        made = store(*arguments)
        assert desk.http.post(f"/v1/batches/{batch['id']}/cancel").json()["status"] == "cancelled"
        return made

    monkeypatch.setattr(work, "store", cancelled_meanwhile)
    desk.keeper.keep()
    assert desk.read(batch["id"])["status"] == "cancelled"
    with desk.office.sessions.begin() as session:
        assert list(session.scalars(select(Job))) == []
        assert list(session.scalars(select(Upload))) == []
    assert list(desk.services.settings.uploads.glob("*.parquet")) == []
