"""Broken files, and whole ones of awkward sizes, through API and worker. The process that reads them lives on."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import httpx
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from db.models import JobStatus
from db.stores import Place
from tests.db.bad_parquet import BadFiles
from tests.faults.rig import Outcome, Rig, read
from tests.faults.tally import Report
from tests.worker.factories import ECHO

pytestmark = pytest.mark.faults
RigOn = Callable[..., Rig]
MOST_GROWTH = 192 << 20  # of a process; libraries alone take 200 to 400 MiB, on one machine more than on another


def submit(url: str, source: Place, output: Place, **more: Any) -> httpx.Response:
    body = {"input": str(source), "output": str(output), "model": "fake", "recipe": ECHO, **more}
    return httpx.post(f"{url}/v1/jobs", json={"sampling": {"max_tokens": 4}, **body}, timeout=120)


def sizes(rig: Rig) -> list[int]:
    """Of the API and the worker."""
    return [psutil.Process(process.pid).memory_info().rss for process in (rig.api[0], rig.crew.processes[0])]


def test_broken_files(rig_on: RigOn, report: Report) -> None:
    """Each is refused at the submission, by name, or read with its rows as they are."""
    rig = rig_on()
    folder = rig.home / "bad"
    folder.mkdir()
    kinds = BadFiles(folder).write()
    url = rig.serve()
    rig.hire()
    accepted: dict[str, str] = {}
    there = rig.lay(folder)
    whole = next(name for name, kind in sorted(kinds.items()) if kind == "ok")
    rig.wait(submit(url, there / whole, rig.place("out-whole")).json()["id"])
    before = sizes(rig)
    for name in sorted(name for name, kind in kinds.items() if kind != "ok"):
        answer = submit(url, there / name, rig.place(f"out-{name}"))
        assert answer.status_code in (202, 422), (name, answer.text)
        if answer.status_code == 202:
            accepted[answer.json()["id"]] = name
        else:
            assert name in answer.json()["detail"], answer.text
    for job_id, name in accepted.items():  # what is broken lies in a page, and is found when that is read
        job = rig.wait(job_id)
        endings = {JobStatus.FAILED, JobStatus.COMPLETED_WITH_ERRORS}
        if kinds[name] != "error":
            endings.add(JobStatus.COMPLETED)
        assert job.status in endings, name
        assert job.status is not JobStatus.FAILED or job.error_message
    assert rig.crew.processes[0].poll() is None
    grown = [size - size_before for size, size_before in zip(sizes(rig), before, strict=True)]
    assert max(grown) < MOST_GROWTH, grown
    report.add(f"{sum(kind != 'ok' for kind in kinds.values())} files", Outcome(0, 0, 0, 0), number=22)


def test_a_row_group_of_a_gigabyte(rig_on: RigOn, report: Report) -> None:
    """Its rows are read a few at a time: neither process ever holds the group."""
    rig = rig_on(worker_threads=1, shard_rows=10_000)
    source, num_rows = rig.home / "in.parquet", 8192
    block = pa.array([f"{i:06d}" + "x" * (1 << 17) for i in range(256)], pa.string())
    with pq.ParquetWriter(source, pa.schema([("id", pa.int64()), ("text", pa.string()), ("blob", pa.string())]),
                          compression="zstd", use_dictionary=False) as writer:  # fmt: skip
        texts = pa.array([f"t{i}" for i in range(num_rows)])
        blobs = pa.chunked_array([block] * (num_rows // 256))
        writer.write_table(pa.table({"id": range(num_rows), "text": texts, "blob": blobs}), row_group_size=num_rows)
    assert pq.read_metadata(source).row_group(0).total_byte_size > 1 << 30
    url = rig.serve()
    answer = submit(url, rig.lay(source), rig.place("job-out"), sampling={"max_tokens": 10})
    assert answer.status_code == 202, answer.text
    rig.hire()
    watched, peak = psutil.Process(rig.crew.processes[0].pid), 0
    started = time.monotonic()
    while not rig.office.job(answer.json()["id"]).status.terminal:
        peak = max(peak, watched.memory_info().rss)
        assert time.monotonic() - started < 400
        time.sleep(0.05)
    parts = sorted(rig.output().glob("part-*.parquet"))
    rows = pa.concat_tables(pq.read_table(part, columns=["id", "output"]) for part in parts)
    assert rows["output"].to_pylist() == [f"T{i}" for i in range(num_rows)]
    blobs = (blob for part in parts for batch in pq.ParquetFile(part).iter_batches(256, columns=["blob"])
             for blob in batch["blob"].to_pylist())  # fmt: skip
    assert all(blob == block[i % 256].as_py() for i, blob in enumerate(blobs))
    assert peak < 900 << 20, f"{peak >> 20} MiB"
    report.add("one row group of 1 GiB", Outcome(num_rows, 0, 0, 0), number=23)


def test_many_small_files_and_empty_ones(rig_on: RigOn, report: Report) -> None:
    rig = rig_on()
    folder = rig.home / "in"
    folder.mkdir()
    rows = 0
    for number in range(300):
        count = number % 3  # 0, 1 or 2 rows
        ids = range(rows, rows + count)
        table = pa.table(
            {"id": pa.array(ids, pa.int64()), "text": pa.array([f"job row {i}" for i in ids], pa.string())}
        )
        pq.write_table(table, folder / f"{number:04d}.parquet")
        rows += count
    url = rig.serve()
    rig.hire()
    answer = submit(url, rig.lay(folder), rig.place("job-out"), sampling={"max_tokens": 100})
    assert answer.status_code == 202, answer.text
    job = rig.wait(answer.json()["id"])
    assert (job.status, job.rows_succeeded) == (JobStatus.COMPLETED, rows)
    outcome = rig.check(rows)
    assert Counter(read(rig.output())["id"].to_pylist()) == Counter(range(rows))
    report.add("300 files of no, one or two rows", outcome, number=23)
