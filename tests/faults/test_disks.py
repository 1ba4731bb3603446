"""A full disk and broken inputs."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from db.models import JobStatus
from tests.faults.rig import Outcome, Rig, read
from tests.faults.tally import Report
from tests.worker.factories import spec_of, write_texts

pytestmark = pytest.mark.faults
RigOn = Callable[..., Rig]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """256 KiB. Needs the right to mount."""
    folder = tmp_path / "small"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=256k", "none", str(folder)], capture_output=True, text=True, check=False
    )
    if mounted.returncode != 0:
        pytest.skip(f"cannot mount a small disk: {mounted.stderr.strip()}")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def test_the_outputs_disk_is_full(rig_on: RigOn, report: Report, small_disk: Path) -> None:
    """What was published stays whole, nothing half-written has a part's name, and the job says why it failed."""
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
    report.add("the output's disk is full", Outcome(len(rows), 0, 0, 0))


@pytest.mark.parametrize("damage", ["truncated", "flipped"])
def test_an_input_that_breaks_after_the_submission(rig_on: RigOn, report: Report, damage: str) -> None:
    rig = rig_on()
    texts = [f"{i}" * 200 for i in range(1000)]
    source = write_texts(rig.home / "in.parquet", texts, write_page_checksum=True)
    rig.office.submit(spec_of(source, model="fake", sampling={"max_tokens": 1000}), rig.home / "out")
    data = bytearray(source.read_bytes())
    if damage == "truncated":
        source.write_bytes(data[: len(data) // 2])
    else:
        place = rig.random.randrange(len(data) // 4, len(data) // 2)
        data[place] ^= 1 << rig.random.randrange(8)
        source.write_bytes(data)
    rig.hire()
    job = rig.wait()
    if damage == "flipped" and job.status is JobStatus.COMPLETED:  # a bit that nobody reads, in a page's statistics
        assert read(rig.home / "out")["output"].to_pylist() == texts
    else:
        assert job.status is JobStatus.FAILED
        assert job.error_code == ("invalid_parquet" if damage == "truncated" else "corrupt_data"), job.error_message
        assert "in.parquet" in (job.error_message or "")
    report.add(f"an input that is {damage} after the submission", Outcome(0, 0, 0, 0))
