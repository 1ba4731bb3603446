"""Datasets that were made of batches' files go in time, and never while something is still written from them."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import select, update

from db import openai_retention
from db.models import Upload
from db.openai_models import Batch
from tests.api.openai.office import Desk
from tests.api.openai.rig import chat

AGE = 40 * openai_retention.DAY


def age(desk: Desk) -> None:
    """Batches that have ended did so forty days ago."""
    with desk.services.sessions.begin() as session:
        session.execute(update(Batch).where(Batch.ended_at.is_not(None)).values(ended_at=Batch.ended_at - AGE))


def tidy(desk: Desk) -> int:
    with desk.services.sessions.begin() as session:
        return openai_retention.remove_datasets(session, desk.services.settings)


def kept(desk: Desk) -> set[str]:
    """Ids of datasets; each has its file."""
    with desk.services.sessions.begin() as session:
        found = set(session.scalars(select(Upload.id)))
    assert {path.stem for path in desk.services.settings.uploads.glob("*.parquet")} == found
    return found


def dataset(desk: Desk, batch: dict[str, Any]) -> str:
    return str(desk.job(batch).spec["input"]).removeprefix("upload://")


@pytest.mark.parametrize("database", ["sqlite", "postgres"], indirect=True)
def test_datasets_go_when_nothing_reads_them(desk: Desk) -> None:
    done = desk.run([chat(f"r{i}", f"text {i}") for i in range(2)])
    half = desk.start([chat(f"r{i}", f"text {i}") for i in range(6)])
    desk.work(until=lambda wakeup: wakeup.task == "run")
    desk.office.do(desk.office.sent.pop())
    desk.http.post(f"/v1/batches/{half['id']}/cancel")
    half = desk.finish(half["id"])
    going = desk.start([chat("r0", "text")])
    sources = {dataset(desk, batch) for batch in (done, half, going)}
    assert (tidy(desk), kept(desk)) == (0, sources)  # they have just ended

    age(desk)
    assert tidy(desk) == 1
    assert kept(desk) == sources - {dataset(desk, done)}
    assert len(desk.lines(done["output_file_id"])[0]) == 2
    assert len(desk.lines(half["error_file_id"])[0]) == 4  # of requests that the job never came to

    assert desk.http.delete(f"/v1/files/{half['error_file_id']}").status_code == 200
    again = {"input": f"upload://{dataset(desk, half)}", "recipe": {"kind": "openai"}, "model": "fake"}
    reader = desk.http.post("/v1/jobs", json=again).json()["id"]
    assert tidy(desk) == 0
    desk.http.post(f"/v1/jobs/{reader}/cancel")
    assert tidy(desk) == 1
    assert kept(desk) == {dataset(desk, going)}
    assert len(desk.lines(half["output_file_id"])[0]) == 2


def test_the_keeper_looks(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    done = desk.run([chat("r0", "text")])
    assert kept(desk) == {dataset(desk, done)}
    age(desk)
    desk.keeper.keep()  # it has looked not long ago
    assert kept(desk) == {dataset(desk, done)}
    monkeypatch.setattr("api.openai.keeper.TIDY_SECONDS", 0.0)
    desk.keeper.keep()
    assert kept(desk) == set()
