"""A full disk and broken inputs."""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest
from sqlalchemy import select

from db.models import Job, JobStatus
from tests.faults.rig import IN_BUCKETS, Outcome, Rig, on_disks, read
from tests.faults.tally import Report
from tests.faults.test_workers import completed
from tests.worker.factories import ECHO, spec_of, write_texts

pytestmark = pytest.mark.faults
RigOn = Callable[..., Rig]


@pytest.fixture
def disk_of(tmp_path: Path) -> Iterator[Callable[[str], Path]]:
    """`disk_of("512k")`: a folder that is a disk of this size. Needs the right to mount."""
    folder = tmp_path / "small"
    folder.mkdir()
    mounted: list[Path] = []

    def make(size: str) -> Path:
        command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "none", str(folder)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            pytest.skip(f"cannot mount a small disk: {done.stderr.strip()}")
        mounted.append(folder)
        return folder

    yield make
    for each in mounted:
        subprocess.run(["umount", "-l", str(each)], check=True)


@on_disks("a bucket's is not ours to fill")
def test_the_outputs_disk_is_full(rig_on: RigOn, report: Report, disk_of: Callable[[str], Path]) -> None:
    """What was published stays whole, nothing half-written has a part's name, and the job says why it failed."""
    small_disk = disk_of("512k")
    rig = rig_on()
    texts = [f"{i} ".join(map(str, range(i, i + 150))) for i in range(2000)]
    source = write_texts(rig.home / "in.parquet", texts)
    spec = spec_of(source, model="fake", sampling={"max_tokens": 2000})
    rig.office.submit(spec, small_disk / "out")
    rig.hire()
    job = rig.wait()
    assert (job.status, job.error_code) == (JobStatus.FAILED, "no_space")
    assert "No space left on device" in (job.error_message or "")
    parts = sorted((small_disk / "out").glob("part-*.parquet"))
    rows = read(small_disk / "out").to_pylist() if parts else []
    assert [row["output"] for row in rows] == [texts[row["id"]].upper() for row in rows]
    assert len(rows) == job.rows_succeeded
    report.add("the output's disk, for good: the job says so", Outcome(len(rows), 0, 0, 0), number=15)


def test_the_ledgers_disk_is_full(rig_on: RigOn, report: Report, disk_of: Callable[[str], Path]) -> None:
    """Nothing that was accepted is lost: the API refuses for the time being, and the job goes on when there is room."""
    small_disk = disk_of("16m")  # SQLite's log alone grows to 4 MB
    rig = rig_on(f"sqlite:///{small_disk / 'ledger.db'}")
    url = rig.serve()
    rig.submit(2000)
    rig.hire()
    rig.wait_rows(200)
    filler = small_disk / "filler"
    with contextlib.suppress(OSError), filler.open("wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))
    long = {**ECHO, "template": "{{ text }}" + " " * 4000}
    body = {"input": str(rig.place("job.parquet")), "model": "fake:slow", "recipe": long}
    answers = [httpx.post(f"{url}/v1/jobs", json=body, timeout=120) for _ in range(20)]
    time.sleep(3)
    filler.unlink()
    room, before = time.monotonic(), rig.done()
    assert {answer.status_code for answer in answers} <= {202, 503}, answers[-1].text
    assert answers[-1].status_code == 503
    rig.wait_rows(min(before + 200, 1999))
    seconds = time.monotonic() - room
    report.add("the ledger's disk, for some seconds (until 200 more rows)", completed(rig, 2000), seconds, number=15)
    accepted = [answer.json()["id"] for answer in answers if answer.status_code == 202]
    with rig.office.sessions.begin() as session:
        assert set(session.scalars(select(Job.id))) == {"job", *accepted}


DAMAGES = {"truncated": "invalid_parquet", "a bit flipped": "changed", "a bit flipped by the disk": "corrupt_data"}


@pytest.mark.parametrize("damage", DAMAGES)
def test_an_input_that_breaks_after_the_submission(rig_on: RigOn, report: Report, damage: str) -> None:
    by_disk = damage.endswith("disk")
    if by_disk and IN_BUCKETS:
        pytest.skip("about local disks: other bytes in a bucket have another ETag, as of a writer")
    rig = rig_on()
    texts = [f"{i}" * 200 for i in range(1000)]
    source = write_texts(rig.home / "in.parquet", texts, write_page_checksum=True)
    spec = spec_of(rig.lay(source), model="fake", sampling={"max_tokens": 1000})
    rig.office.submit(spec, rig.place("job-out"))
    data, written = bytearray(source.read_bytes()), source.stat().st_mtime_ns
    if damage == "truncated":
        source.write_bytes(data[: len(data) // 2])
    else:
        place = rig.random.randrange(len(data) // 4, len(data) // 2)
        data[place] ^= 1 << rig.random.randrange(8)
        source.write_bytes(data)
    if by_disk:  # which changes no time
        os.utime(source, ns=(written, written))
    rig.lay(source)
    rig.hire()
    job = rig.wait()
    if by_disk and job.status is JobStatus.COMPLETED:  # a bit that nobody reads, in a page's statistics
        assert read(rig.output())["output"].to_pylist() == texts
    else:
        assert (job.status, job.error_code) == (JobStatus.FAILED, DAMAGES[damage]), job.error_message
        assert "in.parquet" in (job.error_message or "")
    report.add(f"{damage} after the submission", Outcome(0, 0, 0, 0), number=22)
