"""Tasks on real databases: a job from submission to manifest, and everything that may come between."""

from __future__ import annotations

import errno
import hashlib
import json
import math
import os
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from kombu.exceptions import OperationalError
from sqlalchemy import select, update

from db import control
from db.dispatch import Wakeup
from db.histograms import MEASURES
from db.models import JobStatus, Shard, ShardStatus
from db.shards import Beat
from db.workers import workers
from tests.worker.factories import ECHO, Office, spec_of, write_texts
from worker.rows import RowMaker
from worker.sweep import sweep


def shards_of(office: Office) -> list[Shard]:
    with office.sessions.begin() as session:
        return list(session.scalars(select(Shard).order_by(Shard.index)))


def parts(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("part-*"))


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_job_from_submission_to_manifest(office: Office, tmp_path: Path) -> None:
    source, out = write_texts(tmp_path / "in.parquet", (f"row {i}" for i in range(250))), tmp_path / "out"
    office.submit(spec_of(source), out)
    assert office.work() == ["split", "run", "run", "run", "merge"]
    job = office.job()
    assert (job.status, job.num_shards, job.shards_done) == (JobStatus.COMPLETED, 3, 3)
    assert (job.rows_succeeded, job.rows_failed, job.output_tokens) == (
        250,
        0,
        sum(len(f"row {i}") for i in range(250)),
    )
    sizes = [shard.input_bytes for shard in shards_of(office)]
    assert min(sizes) > 0
    assert (job.input_bytes, job.bytes_done) == (sum(sizes), sum(sizes))
    assert names(out) == ["_SUCCESS", "_manifest.json", *(f"part-0000{i}.parquet" for i in range(3))]
    table = pa.concat_tables(pq.read_table(out / f"part-0000{i}.parquet") for i in range(3))
    assert table["id"].to_pylist() == list(range(250))
    assert table["output"].to_pylist() == [f"ROW {i}" for i in range(250)]


def test_manifest(office: Office, tmp_path: Path) -> None:
    source, out = write_texts(tmp_path / "in.parquet", ["aa", None, "cc", "", "ee"]), tmp_path / "out"
    spec = spec_of(source, shard_rows=2, keep_columns=["id"])
    job = office.submit(spec, out)
    office.work()
    assert office.job().status is JobStatus.COMPLETED_WITH_ERRORS
    manifest = json.loads((out / "_manifest.json").read_text())
    assert list(manifest) == [
        *("format", "job", "complete", "created_at", "started_at", "running_at", "finished_at"),
        *("model", "sampling", "spec", "prepared", "status", "rows", "errors", "tokens", "engine"),
        *("percentiles", "windows", "schema", "files"),
    ]
    assert manifest["format"] == "nightmill/1"
    assert manifest["complete"] is True
    assert manifest["model"] == {"name": "fake", "fingerprint": "f" * 16}
    assert manifest["sampling"]["max_tokens"] == 100
    assert manifest["spec"] == job.spec
    assert manifest["prepared"] == {}
    assert manifest["status"] == "completed_with_errors"
    assert manifest["rows"] == {"input": 5, "succeeded": 3, "failed": 2, "unfinished": 0}
    assert manifest["errors"] == {"empty_text": 1, "template_error": 1}
    assert manifest["tokens"] == {"prompt": 15, "cached": 0, "output": 6}
    with office.sessions.begin() as session:
        steps = [shard.counters["steps"] for shard in session.scalars(select(Shard)) if shard.counters]
    assert sum(steps) > 0
    assert manifest["engine"]["steps"] == sum(steps)
    assert manifest["engine"]["drafts"] == {
        "forced": {
            "proposed": 2 * sum(steps),
            "accepted": sum(steps),
            "steps": sum(steps),
            "acceptance_rate": 0.5,
            "tokens_per_step": 1.0,
        }
    }
    percentiles = manifest["percentiles"]
    assert list(percentiles) == list(MEASURES)
    assert {name: each["count"] for name, each in percentiles.items()} == {
        "row_latency_seconds": 3,
        "queue_wait_seconds": 3,
        "prefill_tokens_per_second": 3,
        "decode_tokens_per_second": 3,
        "batch_occupancy": sum(steps),
        "kv_occupancy": sum(steps),
    }
    assert percentiles["queue_wait_seconds"] == {"p50": 0.01, "p90": 0.01, "p99": 0.01, "count": 3}
    (window,) = manifest["windows"]
    assert {name: window[name] for name in MEASURES} == percentiles
    assert window["from"] == manifest["running_at"]
    assert manifest["schema"][:2] == [
        {"name": "id", "type": "int64", "nullable": True},
        {"name": "output", "type": "large_string", "nullable": True},
    ]
    assert [(f["name"], f["first_row"], f["rows"], f["rows_failed"]) for f in manifest["files"]] == [
        ("part-00000.parquet", 0, 2, 1),
        ("part-00001.parquet", 2, 2, 1),
        ("part-00002.parquet", 4, 1, 0),
    ]
    for file in manifest["files"]:
        data = (out / file["name"]).read_bytes()
        assert (file["bytes"], file["sha256"]) == (len(data), hashlib.sha256(data).hexdigest())
    times = [manifest[name] for name in ("created_at", "started_at", "running_at", "finished_at")]
    assert times == sorted(times)


def test_no_row_succeeded(office: Office, tmp_path: Path) -> None:
    out = tmp_path / "out"
    office.submit(spec_of(write_texts(tmp_path / "in.parquet", [None, ""])), out)
    office.work()
    job = office.job()
    assert (job.status, job.error_code) == (JobStatus.FAILED, "no_row_succeeded")
    assert names(out) == ["_SUCCESS", "_errors", "_manifest.json", "part-00000.parquet"]


def test_an_empty_input(office: Office, tmp_path: Path) -> None:
    out = tmp_path / "out"
    office.submit(spec_of(write_texts(tmp_path / "in.parquet", [])), out)
    assert office.work() == ["split", "run", "merge"]
    assert office.job().status is JobStatus.COMPLETED
    assert pq.read_table(out / "part-00000.parquet").num_rows == 0


def test_several_files_and_max_rows(office: Office, tmp_path: Path) -> None:
    folder, out = tmp_path / "in", tmp_path / "out"
    folder.mkdir()
    for name in "abc":
        write_texts(folder / f"{name}.parquet", (f"{name}{i}" for i in range(120)))
    office.submit(spec_of(folder, max_rows=250), out)
    office.work()
    table = pa.concat_tables(pq.read_table(path) for path in sorted(out.glob("part-*")))
    assert table["output"].to_pylist() == [f"{name}{i}" for name in "ABC" for i in range(120)][:250]
    manifest = json.loads((out / "_manifest.json").read_text())
    assert [(f["first_row"], f["rows"]) for f in manifest["files"]] == [
        (0, 100),
        (100, 20),
        (120, 100),
        (220, 20),
        (240, 10),
    ]


def test_never_more_messages_than_the_window(office: Office, tmp_path: Path) -> None:
    office.submit(spec_of(write_texts(tmp_path / "in.parquet", ["x"] * 900)), tmp_path / "out")
    most = 0

    def watch(wakeup: Wakeup) -> bool:
        nonlocal most
        most = max(most, len(office.sent))
        return False

    office.work(watch)
    assert most == 2


LABEL = {"kind": "label", "labels": ["good", "bad"]}


def test_label_calibration_is_learnt_once_and_kept(office: Office, tmp_path: Path) -> None:
    texts = [["so good", "bad", None, "so bad"][i % 4] for i in range(400)]
    out = tmp_path / "out"
    office.submit(spec_of(write_texts(tmp_path / "in.parquet", texts), recipe=LABEL), out)
    office.work()
    prepared = office.job().prepared
    assert prepared is not None
    # 128 rows were looked at, three of four of them valid, every fourth a `good` one.
    log_odds = (2.1 - 1.9 - 1.9) / 3
    good = 1 / (1 + math.exp(-log_odds))
    assert prepared["label_prior_of"] == 96
    assert prepared["label_prior"] == pytest.approx([good, 1 - good])
    table = pq.read_table(out / "part-00001.parquet")
    assert table["label"].to_pylist()[:4] == ["good", "bad", None, "bad"]
    assert json.loads((out / "_manifest.json").read_text())["prepared"]["label_prior_of"] == 96


@pytest.mark.parametrize(
    ("values", "code", "message"),
    [
        ({"model": "gone"}, "model_missing", "model 'gone': no such fake"),
        (
            {"sampling": {"max_tokens": 4096}},
            "invalid_job",
            "sampling.max_tokens: leaves no room for a prompt: the model takes 4096 tokens in all",
        ),
        (
            {"recipe": {**LABEL, "column": "id"}},
            "wrong_type",
            "in.parquet: column 'id' is int64; text must be a string column",
        ),
        (
            {"recipe": {**ECHO, "columns": ["nope"]}},
            "no_column",
            "in.parquet: has no column 'nope'; its columns are: 'id', 'text'",
        ),
        ({"keep_columns": ["nope"]}, "no_column", "in.parquet: has no column 'nope'; its columns are: 'id', 'text'"),
    ],
)
def test_a_job_that_cannot_run_fails_once(
    office: Office, tmp_path: Path, values: dict[str, object], code: str, message: str
) -> None:
    source = write_texts(tmp_path / "in.parquet", ["a"])
    office.submit(spec_of(source, **values), tmp_path / "out")
    assert office.work() == ["split"]
    job = office.job()
    assert (job.status, job.error_code) == (JobStatus.FAILED, code)
    assert str(job.error_message).endswith(message)


def test_a_column_that_would_come_twice(office: Office, tmp_path: Path) -> None:
    pq.write_table(pa.table({"text": ["a"], "output": ["b"]}), tmp_path / "in.parquet")
    office.submit(spec_of(tmp_path / "in.parquet"), tmp_path / "out")
    office.work()
    reason = "output_prefix: the input has columns that the job would add: 'output'; give an output_prefix"
    assert str(office.job().error_message).startswith(reason)


def test_an_input_that_changed_since_the_submission(office: Office, tmp_path: Path) -> None:
    source = write_texts(tmp_path / "in.parquet", ["a", "b"])
    office.submit(spec_of(source), tmp_path / "out")
    write_texts(source, ["a"])
    office.work()
    assert (office.job().status, office.job().error_code) == (JobStatus.FAILED, "changed")


def test_messages_may_come_twice_and_late(office: Office, tmp_path: Path) -> None:
    out = tmp_path / "out"
    office.submit(spec_of(write_texts(tmp_path / "in.parquet", ["x"] * 150)), out)
    office.work()
    before = {path: path.stat().st_ino for path in out.iterdir()}
    for wakeup in (Wakeup("split", "job"), *(Wakeup("run", s.id) for s in shards_of(office)), Wakeup("merge", "job")):
        office.do(wakeup)
    assert office.sent == []
    assert {path: path.stat().st_ino for path in out.iterdir()} == before
    assert [(shard.status, shard.attempts) for shard in shards_of(office)] == [(ShardStatus.DONE, 1)] * 2
    assert office.job().status is JobStatus.COMPLETED


def test_an_engine_that_always_breaks_fails_the_job(office: Office, tmp_path: Path) -> None:
    """Rows are tried alone first, for it could be the rows."""
    office.submit(spec_of(write_texts(tmp_path / "in.parquet", ["x"] * 90), model="fake:crash"), tmp_path / "out")
    office.work()
    job = office.job()
    assert (job.status, job.error_code) == (JobStatus.FAILED, "engine_failed")
    assert str(job.error_message).startswith("shard 0: the engine ended so often that 41 rows of the shard were tried")
    assert parts(tmp_path / "out") == []


def at_run(wakeup: Wakeup) -> bool:
    return wakeup.task == "run"


def test_drain_gives_the_shard_back(office: Office, tmp_path: Path) -> None:
    office.submit(spec_of(write_texts(tmp_path / "in.parquet", ["x"] * 50)), tmp_path / "out")
    office.work(until=at_run)
    office.process.drain.set()
    office.do(office.sent.pop())
    (shard,) = shards_of(office)
    assert (shard.status, shard.attempts, shard.owner) == (ShardStatus.PENDING, 0, None)
    assert names(tmp_path / "out") == []
    office.process.drain.clear()
    assert office.work() == ["run", "merge"]
    assert office.job().status is JobStatus.COMPLETED


def interrupt(office: Office, monkeypatch: pytest.MonkeyPatch, action: object) -> None:
    """Have `action` happen once, in the middle of the shard that runs next."""
    original, calls = RowMaker.result, iter(range(1000))

    def result(self: RowMaker, *args: object) -> object:
        if next(calls) == 10:
            action()  # type: ignore[operator]
            time.sleep(0.5)  # longer than the pause between two heartbeats
        return original(self, *args)  # type: ignore[arg-type]

    monkeypatch.setattr(RowMaker, "result", result)


def test_a_lost_lease_writes_nothing(office: Office, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    office.submit(spec_of(write_texts(tmp_path / "in.parquet", ["x"] * 100)), tmp_path / "out")
    office.work(until=at_run)

    def take_away() -> None:
        with office.sessions.begin() as session:
            session.execute(update(Shard).values(fence=Shard.fence + 1, owner="another"))

    interrupt(office, monkeypatch, take_away)
    office.do(office.sent.pop())
    (shard,) = shards_of(office)
    assert (shard.status, shard.owner, shard.rows_succeeded) == (ShardStatus.RUNNING, "another", 0)
    assert parts(tmp_path / "out") == []


def test_cancel_in_the_middle_of_a_shard(office: Office, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "out"
    office.submit(spec_of(write_texts(tmp_path / "in.parquet", (f"{i}" for i in range(300)))), out)
    office.work(until=at_run)
    office.do(office.sent.pop(0))  # the first shard is done before the cancel

    def cancel() -> None:
        with office.sessions.begin() as session:
            control.cancel(session, "job", "default")

    interrupt(office, monkeypatch, cancel)
    office.work()
    done = ShardStatus.DONE
    assert [shard.status for shard in shards_of(office)] == [done, done, ShardStatus.CANCELLED]
    job = office.job()
    assert (job.status, job.rows_failed) == (JobStatus.CANCELLED, 0)
    assert 110 <= job.rows_succeeded < 200
    assert names(out) == ["_errors", "_manifest.json", "part-00000.parquet", "part-00001.parquet"]
    manifest = json.loads((out / "_manifest.json").read_text())
    left = 200 - job.rows_succeeded
    assert (manifest["complete"], manifest["status"]) == (False, "cancelled")
    assert manifest["rows"] == {"input": 300, "succeeded": 200 - left, "failed": 0, "unfinished": left + 100}
    assert manifest["errors"] == {"cancelled": left}
    # The second shard has all its rows; those that were not computed say so, and are dead letters.
    rows = pq.read_table(out / "part-00001.parquet").to_pylist()
    assert [row["id"] for row in rows] == list(range(100, 200))
    assert all(row["output"] == str(row["id"]) for row in rows if row["error"] is None)
    undone = [row["id"] for row in rows if row["error"] is not None]
    assert len(undone) == left
    letters = pq.read_table(out / "_errors" / "part-00001.parquet").to_pylist()
    assert [row["id"] for row in letters] == undone
    assert {row["nightmill_error"]["code"] for row in letters} == {"cancelled"}


def test_progress_is_seen_while_a_shard_runs(office: Office, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    office.submit(spec_of(write_texts(tmp_path / "in.parquet", ["x"] * 100)), tmp_path / "out")
    seen = []
    monkeypatch.setattr("worker.run.shards.beat", lambda *args, progress, **kw: seen.append(progress.rows) or Beat.OK)
    interrupt(office, monkeypatch, lambda: None)
    office.work()
    assert 10 in seen


def test_a_part_published_before_the_crash_is_adopted(
    office: Office, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    office.submit(spec_of(write_texts(tmp_path / "in.parquet", ["x"] * 100)), out)
    office.work(until=at_run)
    with monkeypatch.context() as patch:
        patch.setattr("worker.run._done", lambda *args: None)  # the process dies between the link and the commit
        office.do(office.sent.pop())
    assert [shard.status for shard in shards_of(office)] == [ShardStatus.RUNNING]
    inode = (out / "part-00000.parquet").stat().st_ino
    monkeypatch.setattr("worker.run.make", None)
    time.sleep(0.7)  # the dead lease runs out
    assert office.work() == ["run", "merge"]
    job = office.job()
    assert (job.status, job.rows_succeeded, job.output_tokens) == (JobStatus.COMPLETED, 100, 100)
    assert (out / "part-00000.parquet").stat().st_ino == inode


def test_a_foreign_file_in_the_way_fails_the_job(office: Office, tmp_path: Path) -> None:
    out = tmp_path / "out"
    office.submit(spec_of(write_texts(tmp_path / "in.parquet", ["x"])), out)
    office.work(until=at_run)
    (out / "part-00000.parquet").write_bytes(b"not ours")
    office.work()
    assert (office.job().status, office.job().error_code) == (JobStatus.FAILED, "output_conflict")
    assert (out / "part-00000.parquet").read_bytes() == b"not ours"


def test_a_broker_that_is_away_loses_nothing(office: Office, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    office.submit(spec_of(write_texts(tmp_path / "in.parquet", ["x"])), tmp_path / "out")
    refusing = True

    def send(wakeup: Wakeup) -> None:
        if refusing:
            raise OperationalError("no broker")
        office.sent.append(wakeup)

    def lying() -> int:
        if refusing:
            raise OperationalError("no broker")
        return 0

    object.__setattr__(office.process, "send", send)
    office.process.dispatch(again=True)
    object.__setattr__(office.process, "lying", lying)
    office.process.dispatch(again=True)
    assert office.sent == []
    refusing = False
    assert office.work() == ["split", "run", "merge"]


def test_sweep_sends_what_is_due_and_reports_the_worker(office: Office, tmp_path: Path) -> None:
    office.submit(spec_of(write_texts(tmp_path / "in.parquet", ["x"])), tmp_path / "out")
    sweep(office.process)
    assert office.sent == [Wakeup("split", "job")]
    sweep(office.process)
    assert office.sent == [Wakeup("split", "job")]
    with office.sessions.begin() as session:
        (worker,) = workers(session)
    assert (worker.name, worker.model) == ("office", None)
    assert list(worker.stats) == ["memory_bytes"]
    assert 10 << 20 < worker.stats["memory_bytes"] < 10 << 30


@pytest.mark.parametrize("when", ["split", "run", "merge"])
def test_an_error_of_the_machine_at_opening_a_file_passes(
    office: Office, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    office.submit(spec_of(write_texts(tmp_path / "in.parquet", (f"row {i}" for i in range(30)))), tmp_path / "out")
    office.work(until=lambda wakeup: wakeup.task == when)
    opened, broken = os.open, list[str]()

    def once(path: str, *flags: Any, **more: Any) -> int:
        if str(path).endswith(".parquet") and not broken:
            broken.append(path)
            raise OSError(errno.EMFILE, "Too many open files")
        return opened(path, *flags, **more)

    monkeypatch.setattr("db.stores.local.os.open", once)
    office.work()
    assert broken
    assert office.job().status is JobStatus.COMPLETED
