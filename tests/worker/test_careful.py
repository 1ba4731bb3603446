"""A careful attempt that ends by no row's fault: no healthy row is set aside, and the engine is not called broken."""

from __future__ import annotations

import contextlib
import errno
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from sqlalchemy import update

from db import control
from db.models import JobStatus, Shard, ShardStatus
from tests.worker.factories import Office, spec_of
from tests.worker.fakes import FakeEngine
from worker import suspects
from worker.checkpoints import Checkpoint, Saved
from worker.open_model import OpenModel
from worker.rows import Result
from worker.run import run

# The two databases do the same here; see tests/db.
pytestmark = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)


def begin(office: Office, folder: Path, texts: list[str], group: int, model: str = "fake") -> None:
    """A job whose one shard is to be taken up by a careful attempt: the first one's process died. `group`: rows of a
    row group."""
    table = pa.table({"id": range(len(texts)), "text": texts})
    pq.write_table(table, folder / "in.parquet", row_group_size=group)
    office.submit(spec_of(folder / "in.parquet", model=model, shard_rows=len(texts)), folder / "out")
    office.work(until=lambda wakeup: wakeup.task == "run")
    with office.sessions.begin() as session:
        dead = {"status": ShardStatus.RUNNING, "owner": "dead", "attempts": 1, "fence": 1, "lease_until": 0.0}
        session.execute(update(Shard).values(**dead))


def rows(folder: Path) -> list[tuple[int, str | None, str | None]]:
    """Id, output and error code."""
    found = pq.read_table(folder / "out" / "part-00000.parquet").to_pylist()
    return [(row["id"], row["output"], row["error"] and row["error"]["code"]) for row in found]


def test_rows_that_were_alone_by_chance_and_finished_do_not_make_the_engine_broken(
    office: Office, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each batch is one row; the one that ends the engine comes after more of them than may die."""
    monkeypatch.setattr(suspects, "MOST_ALONE", 2)
    poison = 3
    texts = [f"row {i}" if i != poison else "raise" for i in range(5)]
    begin(office, tmp_path, texts, 1, "fake:poison")
    office.work()
    assert office.job().status is JobStatus.COMPLETED_WITH_ERRORS
    assert rows(tmp_path) == [
        (i, None, "engine_crash") if i == poison else (i, f"ROW {i}", None) for i in range(len(texts))
    ]


def interrupted(office: Office, act: Callable[[], object]) -> None:
    """An attempt whose row is in the engine, and not finished, when `act` is called and until the attempt has ended."""
    with pytest.MonkeyPatch.context() as patch:
        acted: list[object] = []

        def step(self: FakeEngine) -> list[object]:
            acted or acted.append(act())
            time.sleep(0.01)
            return []

        patch.setattr(FakeEngine, "step", step)
        run(office.process)
    assert acted


@pytest.mark.parametrize("how", ["drain", "pause"])
def test_an_attempt_that_is_told_to_stop_blames_no_row(office: Office, tmp_path: Path, how: str) -> None:
    begin(office, tmp_path, ["row 0"], 1)

    def pause() -> None:
        with office.sessions.begin() as session:
            control.pause(session, "job", "default")

    for _ in range(suspects.DEATHS):
        interrupted(office, office.process.drain.set if how == "drain" else pause)
        office.process.drain.clear()
        if how == "pause":
            with office.sessions.begin() as session:
                control.resume(session, "job", "default")
        office.process.dispatch(again=True)
    office.work()
    assert rows(tmp_path) == [(0, "ROW 0", None)]
    assert office.job().status is JobStatus.COMPLETED


def test_an_attempt_whose_disk_is_full_blames_no_row(
    office: Office, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its one row is computed each time, and cannot be kept."""
    begin(office, tmp_path, ["row 0"], 1)
    flush = Checkpoint.flush
    refused: list[int] = []

    def full(self: Checkpoint) -> None:
        if self._rows and len(refused) < suspects.DEATHS:
            refused.append(len(self._rows))
            self._rows.clear()
            self._results.clear()
            raise OSError(errno.ENOSPC, "No space left on device")
        flush(self)

    monkeypatch.setattr(Checkpoint, "flush", full)
    for _ in range(suspects.DEATHS):
        run(office.process)
        with office.sessions.begin() as session:
            session.execute(update(Shard).values(not_before=0.0))
        office.process.dispatch(again=True)
    assert refused == [1] * suspects.DEATHS
    office.work()
    assert rows(tmp_path) == [(0, "ROW 0", None)]
    assert office.job().status is JobStatus.COMPLETED


@pytest.mark.parametrize("losses", [1, 2])
def test_a_row_whose_attempt_loses_its_lease_is_set_aside_no_sooner_than_the_second_time(
    office: Office, tmp_path: Path, losses: int
) -> None:
    """Once may be an outage of the database; a row that freezes its process again and again must come to an end."""
    begin(office, tmp_path, ["row 0"], 1)
    lost = {"fence": Shard.fence + 1, "attempts": 1, "owner": "another", "lease_until": 0.0}

    def lose() -> None:
        with office.sessions.begin() as session:
            session.execute(update(Shard).values(**lost))

    for _ in range(losses):
        interrupted(office, lose)
    run(office.process)
    assert rows(tmp_path) == [(0, "ROW 0", None) if losses == 1 else (0, None, "engine_crash")]


def test_finished_rows_are_on_disk_before_others_have_the_engine(
    office: Office, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a batch's last group, too, and of one that is stopped: another shard's rows may end the process at once."""
    settings = office.process.settings.model_copy(update={"checkpoint_seconds": 3600.0})
    object.__setattr__(office.process, "settings", settings)
    begin(office, tmp_path, [f"row {i}" for i in range(5)], 3)
    alone, add = OpenModel.alone, Checkpoint.add
    added: list[int] = []
    left: list[list[int]] = []

    @contextlib.contextmanager
    def watched(self: OpenModel, stop: Callable[[], bool]) -> Iterator[None]:
        try:
            with alone(self, stop):
                yield
        finally:
            left.append(sorted({*added} & {*Saved.find(tmp_path / "out", 0, 99).open_rows(0, 5)}))

    def adding(self: Checkpoint, row: int, result: Result) -> None:
        add(self, row, result)
        added.append(row)
        if len(added) == 2:
            office.process.drain.set()

    monkeypatch.setattr(OpenModel, "alone", watched)
    monkeypatch.setattr(Checkpoint, "add", adding)
    run(office.process)  # with two of three rows finished
    office.process.drain.clear()
    office.process.dispatch(again=True)
    run(office.process)
    assert {*added} == {*range(5)}
    assert len(left) >= 2
    assert left == [[]] * len(left)
