"""What a crash costs: rows that were finished are not computed again, whoever died, and poison is set aside."""

from __future__ import annotations

import contextlib
import errno
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from sqlalchemy import select, update
from structlog.contextvars import merge_contextvars
from structlog.testing import capture_logs

from db import control
from db.dispatch import Wakeup
from db.models import Job, JobStatus, Shard, ShardStatus
from db.session import db_now
from engine.request import Request
from tests.worker.factories import Office, spec_of, write_texts
from tests.worker.fakes import FakeEngine, FakeModel
from worker.attempts import Attempt
from worker.checkpoints import Checkpoint
from worker.map_reduce import MapReduceRowMaker
from worker.open_model import OpenModel
from worker.rows import RowMaker
from worker.runner import Runner
from worker.sources import EngineFailed
from worker.suspects import CAREFUL_ROWS

# The two databases do the same here; see tests/db.
pytestmark = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)


@pytest.fixture
def computed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The rows whose answers came out of the engine."""
    rows: list[int] = []
    original = RowMaker.result

    def result(self: RowMaker, output: object, *rest: object) -> object:
        rows.append(output.id)  # type: ignore[attr-defined]
        return original(self, output, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(RowMaker, "result", result)
    return rows


@pytest.fixture
def eager(office: Office) -> Office:
    """Every row is in a checkpoint as soon as it is finished."""
    settings = office.process.settings.model_copy(update={"checkpoint_seconds": 0.0})
    object.__setattr__(office.process, "settings", settings)
    return office


def at_run(wakeup: Wakeup) -> bool:
    return wakeup.task == "run"


def stop_after(count: int, computed: list[int], act: object) -> threading.Thread:
    """Call `act` once so many rows are computed."""

    def watch() -> None:
        while len(computed) < count:
            time.sleep(0.001)
        act()  # type: ignore[operator]

    thread = threading.Thread(target=watch)
    thread.start()
    return thread


def outputs(folder: Path) -> list[str | None]:
    tables = [pq.read_table(path) for path in sorted(folder.glob("part-*.parquet"))]
    return pa.concat_tables(tables)["output"].to_pylist()


def test_a_drained_shard_goes_on_where_it_was(eager: Office, tmp_path: Path, computed: list[int]) -> None:
    source = write_texts(tmp_path / "in.parquet", (f"row {i}" for i in range(100)))
    eager.submit(spec_of(source, model="fake:slow"), tmp_path / "out")
    eager.work(until=at_run)
    thread = stop_after(30, computed, eager.process.drain.set)
    eager.do(eager.sent.pop())
    thread.join()
    first = len(computed)
    assert 30 <= first < 100
    eager.process.drain.clear()
    assert eager.work() == ["run", "merge"]
    assert outputs(tmp_path / "out") == [f"ROW {i}" for i in range(100)]
    assert sorted(computed) == list(range(100))  # each of them once
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        *("_SUCCESS", "_manifest.json", "part-00000.parquet")
    ]
    with eager.sessions.begin() as session:
        assert session.scalars(select(Shard.attempts)).all() == [1]


def test_rows_computed_in_another_order_are_not_computed_again(
    eager: Office, tmp_path: Path, computed: list[int]
) -> None:
    texts = [f"{i % 7} {'long ' * 40} row {i}" for i in range(100)]
    source = write_texts(tmp_path / "in.parquet", texts)
    eager.submit(spec_of(source, model="fake:slow", sampling={"max_tokens": 400}), tmp_path / "out")
    eager.work(until=at_run)
    thread = stop_after(30, computed, eager.process.drain.set)
    eager.do(eager.sent.pop())
    thread.join()
    first = list(computed)
    assert 30 <= len(first) < 100
    assert {row % 7 for row in first[:10]} <= {0, 1}  # the first two of seven beginnings, of 15 and 15 rows
    eager.process.drain.clear()
    assert eager.work() == ["run", "merge"]
    assert outputs(tmp_path / "out") == [text.upper() for text in texts]
    assert sorted(computed) == list(range(100))


def test_pause_saves_and_resume_goes_on(eager: Office, tmp_path: Path, computed: list[int]) -> None:
    source = write_texts(tmp_path / "in.parquet", (f"row {i}" for i in range(100)))
    eager.submit(spec_of(source, model="fake:slow"), tmp_path / "out")
    eager.work(until=at_run)

    def pause() -> None:
        with eager.sessions.begin() as session:
            control.pause(session, "job", "default")

    thread = stop_after(10, computed, pause)
    assert eager.work() == ["run"]
    thread.join()
    assert eager.job().status is JobStatus.PAUSED
    assert 10 <= len(computed) < 100
    with eager.sessions.begin() as session:
        control.resume(session, "job", "default")
    assert eager.work() == ["run", "merge"]
    assert outputs(tmp_path / "out") == [f"ROW {i}" for i in range(100)]
    assert sorted(computed) == list(range(100))


def test_a_deadline_keeps_what_is_finished_and_writes_every_row(
    eager: Office, tmp_path: Path, computed: list[int]
) -> None:
    source = write_texts(tmp_path / "in.parquet", (f"row {i}" for i in range(250)))
    eager.submit(spec_of(source, model="fake:slow", deadline_seconds=3600), tmp_path / "out")
    eager.work(until=at_run)

    def expire() -> None:
        with eager.sessions.begin() as session:
            session.execute(update(Job).values(expires_at=db_now() - 1))
        eager.process.dispatch(again=True)

    thread = stop_after(20, computed, expire)
    eager.work()
    thread.join()
    job = eager.job()
    assert job.status is JobStatus.EXPIRED
    table = pa.concat_tables(pq.read_table(path) for path in sorted((tmp_path / "out").glob("part-*.parquet")))
    rows = table.to_pylist()
    assert [row["id"] for row in rows] == list(range(250))
    finished = [row for row in rows if row["error"] is None]
    assert len(finished) == job.rows_succeeded == len(computed) < 100
    assert all(row["output"] == f"ROW {row['id']}" for row in finished)
    assert {row["error"]["code"] for row in rows if row["error"] is not None} == {"expired"}
    assert {row["finish_reason"] for row in rows} == {"stop", "expired"}
    letters = [pq.read_table(path) for path in sorted((tmp_path / "out" / "_errors").glob("part-*.parquet"))]
    assert pa.concat_tables(letters).num_rows == 250 - len(finished)


def test_a_dead_workers_finished_rows_outlive_a_cancel(eager: Office, tmp_path: Path, computed: list[int]) -> None:
    source = write_texts(tmp_path / "in.parquet", (f"row {i}" for i in range(100)))
    eager.submit(spec_of(source, model="fake:slow"), tmp_path / "out")
    eager.work(until=at_run)
    thread = stop_after(20, computed, eager.process.drain.set)
    eager.do(eager.sent.pop())
    thread.join()
    eager.process.drain.clear()
    with eager.sessions.begin() as session:
        session.execute(update(Shard).values(status=ShardStatus.RUNNING, owner="dead", lease_until=db_now() - 1))
        assert control.cancel(session, "job", "default").status is JobStatus.CANCELLING
    assert eager.work() == ["run", "merge"]
    job = eager.job()
    assert (job.status, job.rows_succeeded) == (JobStatus.CANCELLED, len(computed))
    kept = [text for text in outputs(tmp_path / "out") if text is not None]
    assert kept == [f"ROW {i}" for i in sorted(computed)]


def test_a_poisonous_row_becomes_an_error_row_and_its_neighbours_succeed(eager: Office, tmp_path: Path) -> None:
    texts = [f"row {i}" if i not in (37, 160) else f"raise {i}" for i in range(200)]
    eager.submit(spec_of(write_texts(tmp_path / "in.parquet", texts), model="fake:poison"), tmp_path / "out")
    with capture_logs(processors=[merge_contextvars]) as events:
        eager.work()
    aside = {(event["job"], event["shard"], event["row"]) for event in events if event["event"] == "row set aside"}
    assert aside == {("job", 0, 37), ("job", 1, 160)}
    job = eager.job()
    assert (job.status, job.rows_succeeded, job.rows_failed) == (JobStatus.COMPLETED_WITH_ERRORS, 198, 2)
    table = pa.concat_tables(pq.read_table(path) for path in sorted((tmp_path / "out").glob("part-*.parquet")))
    errors = {row["id"]: row["error"] for row in table.to_pylist() if row["error"] is not None}
    assert {row: error["code"] for row, error in errors.items()} == {37: "engine_crash", 160: "engine_crash"}
    assert [text for text in table["output"].to_pylist() if text] == [
        f"ROW {i}" for i in range(200) if i not in (37, 160)
    ]


def test_a_shard_that_waits_while_anothers_row_ends_the_engine_is_not_given_up(
    eager: Office, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = write_texts(tmp_path / "in.parquet", (f"row {i}" for i in range(100)))
    eager.submit(spec_of(source), tmp_path / "out")
    eager.work(until=at_run)
    with eager.sessions.begin() as session:  # its first attempt died too
        session.execute(update(Shard).values(status=ShardStatus.RUNNING, owner="dead", attempts=1, lease_until=0.0))
    attempts: list[int] = []
    alone = OpenModel.alone

    @contextlib.contextmanager
    def ended(self: OpenModel, stop: Callable[[], bool]) -> Iterator[None]:
        with eager.sessions.begin() as session:
            attempts.append(session.scalars(select(Shard.attempts)).one())
        if len(attempts) <= 4:
            raise EngineFailed("fake", RuntimeError("another's row"))
        with alone(self, stop):
            yield

    monkeypatch.setattr(OpenModel, "alone", ended)
    assert eager.work() == ["run"] * 5 + ["merge"]  # of at most two attempts
    assert attempts[:5] == [1] * 5
    assert outputs(tmp_path / "out") == [f"ROW {i}" for i in range(100)]


def test_a_shard_that_cannot_mark_its_rows_is_given_up(
    eager: Office, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has the engine by then: what breaks it is its own, and counts."""
    eager.submit(spec_of(write_texts(tmp_path / "in.parquet", ["row"])), tmp_path / "out")
    eager.work(until=at_run)
    with eager.sessions.begin() as session:
        session.execute(update(Shard).values(status=ShardStatus.RUNNING, owner="dead", attempts=1, lease_until=0.0))

    def full(self: Checkpoint, first: int, stop: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Checkpoint, "begin", full)
    assert eager.work() == ["run"]
    job = eager.job()
    assert (job.status, job.error_code) == (JobStatus.FAILED, "no_space")


def test_a_careful_shard_has_got_on_with_its_first_group(eager: Office, tmp_path: Path) -> None:
    """Its process may be ended by another shard's rows before it can say so at its end."""
    eager.submit(spec_of(write_texts(tmp_path / "in.parquet", (f"row {i}" for i in range(100)))), tmp_path / "out")
    eager.work(until=at_run)
    with eager.sessions.begin() as session:
        session.execute(update(Shard).values(status=ShardStatus.RUNNING, owner="dead", attempts=1, lease_until=0.0))
    seen: list[tuple[int, bool]] = []
    waits = Attempt.waits

    def told(self: Attempt, waiting: bool) -> None:
        waits(self, waiting)
        with eager.sessions.begin() as session:
            seen.append((session.scalar(select(Shard.attempts)) or 0, waiting))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Attempt, "waits", told)
        assert eager.work() == ["run", "merge"]
    groups = -(-100 // CAREFUL_ROWS)
    assert seen == [(1, True), (2, False), *[(0, True), (1, False)] * (groups - 1)]
    assert outputs(tmp_path / "out") == [f"ROW {i}" for i in range(100)]


@pytest.fixture
def hanging(database_url: str) -> Iterator[tuple[Runner, threading.Event, list[str]]]:
    engine, left, barked = FakeEngine(), threading.Event(), []
    step = engine.step

    def hang() -> object:
        if engine.steps == 2:
            left.wait(20)
        return step()

    engine.step = hang  # type: ignore[assignment,method-assign]
    runner = Runner(lambda name: FakeModel(engine), 0.2, lambda: barked.append("out"))  # type: ignore[arg-type,return-value]
    yield runner, left, barked
    left.set()
    runner.close()


def test_a_hanging_engine_fails_its_tasks_and_asks_for_the_end(
    hanging: tuple[Runner, threading.Event, list[str]],
) -> None:
    runner, _, barked = hanging
    requests = (Request(i, tuple(b"row %d" % i)) for i in range(100))
    with runner.use("fake", lambda: False) as model, pytest.raises(EngineFailed, match="a step took too long"):
        list(model.run(requests, lambda: False, "job"))
    assert barked == ["out"]


def test_a_long_row_is_finished_or_not(
    eager: Office, tmp_path: Path, computed: list[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows of three chunks and their summary: what was finished is taken over, the chunks of other rows come again."""
    source = write_texts(tmp_path / "in.parquet", (f"Text {i}. " + "More and more of it. " * 450 for i in range(12)))
    spec = spec_of(source, model="fake:slow", recipe={"kind": "summarize"}, on_long="map_reduce", reuse=False)
    eager.submit(spec, tmp_path / "out")
    eager.work(until=at_run)
    original = MapReduceRowMaker.answer

    def answer(self: MapReduceRowMaker, *args: object) -> object:
        made = original(self, *args)  # type: ignore[arg-type]
        if sum(id[1] == 3 for id in computed) == 4:  # type: ignore[index]
            eager.process.drain.set()
        return made

    with monkeypatch.context() as patch:
        patch.setattr(MapReduceRowMaker, "answer", answer)
        eager.do(eager.sent.pop())
    eager.process.drain.clear()
    finished = {id[0] for id in computed if id[1] == 3}  # type: ignore[index]
    assert len(finished) == 4
    before, computed[:] = list(computed), []
    assert eager.work() == ["run", "merge"]
    assert {id[0] for id in computed} == set(range(12)) - finished  # type: ignore[index]
    assert len([id for id in (*before, *computed) if id[1] == 3]) == 12  # type: ignore[index]
    table = pq.read_table(tmp_path / "out" / "part-00000.parquet")
    assert table["chunks"].to_pylist() == [3] * 12
    assert [text.partition(".")[0] for text in table["output"].to_pylist()] == [f"TEXT {i}" for i in range(12)]


def test_a_long_row_that_ends_the_engine_costs_no_other_one(
    eager: Office, tmp_path: Path, computed: list[object]
) -> None:
    """It is in the second of its chunks; the others' chunks that were in the engine come again."""
    middle = {4: "Raise. "}
    texts = [f"Text {i}. " + "More and more. " * 300 + middle.get(i, "") + "More and more. " * 300 for i in range(12)]
    source = write_texts(tmp_path / "in.parquet", texts)
    spec = spec_of(source, model="fake:poison", recipe={"kind": "summarize"}, on_long="map_reduce", reuse=False)
    eager.submit(spec, tmp_path / "out")
    eager.work()
    job = eager.job()
    assert (job.status, job.rows_succeeded, job.rows_failed) == (JobStatus.COMPLETED_WITH_ERRORS, 11, 1)
    rows = pq.read_table(tmp_path / "out" / "part-00000.parquet").to_pylist()
    assert [row["id"] for row in rows] == list(range(12))
    assert [row["chunks"] for row in rows] == [None if i == 4 else 3 for i in range(12)]
    assert rows[4]["error"]["code"] == "engine_crash"
    assert [(row["output"] or "").partition(".")[0] for row in rows] == [
        f"TEXT {i}" if i != 4 else "" for i in range(12)
    ]
    last = [id[0] for id in computed if id[1] == 3]  # type: ignore[index]
    assert sorted(last) == [i for i in range(12) if i != 4]  # each of them once
