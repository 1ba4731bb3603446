"""Links that a tenant puts into the output of its job while it runs: the job fails, and nobody else's files change."""

from __future__ import annotations

from pathlib import Path

import pytest

from db.models import JobStatus
from tests.worker.factories import Office, spec_of, write_texts


@pytest.fixture
def others(tmp_path: Path) -> Path:
    folder = tmp_path / "bolt"
    folder.mkdir()
    (folder / "results.parquet").write_bytes(b"theirs")
    return folder


@pytest.mark.parametrize(
    ("task", "name"), [("merge", "_tmp"), ("run", "_tmp"), ("run", "_errors")], ids=["sweep", "checkpoint", "letters"]
)
def test_a_link_inside_the_output(office: Office, tmp_path: Path, others: Path, task: str, name: str) -> None:
    output = tmp_path / "acme"
    office.submit(spec_of(write_texts(tmp_path / "in.parquet", ["a", None, "b"])), output)
    office.work(until=lambda wakeup: wakeup.task == task)
    if (output / name).exists():  # empty, of a writer that has ended
        (output / name).rmdir()
    (output / name).symlink_to(others)
    done = office.work()
    job = office.job()
    assert (job.status, job.error_code) == (JobStatus.FAILED, "changed")
    assert job.error_message is not None
    assert str(output / name) in job.error_message
    assert "a part of the path is a symbolic link" in job.error_message
    assert done.count("run") <= office.process.settings.max_attempts + 1
    assert {path.name: path.read_bytes() for path in others.iterdir()} == {"results.parquet": b"theirs"}


def test_a_root_that_is_a_link_of_the_operator(office: Office, tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "data").symlink_to(tmp_path / "disk")
    office.submit(spec_of(write_texts(tmp_path / "in.parquet", ["a", None])), tmp_path / "data" / "out")
    office.work()
    assert office.job().status is JobStatus.COMPLETED_WITH_ERRORS
    assert (tmp_path / "disk" / "out" / "_SUCCESS").exists()
