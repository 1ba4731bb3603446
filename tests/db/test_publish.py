"""A published file is whole or absent, and the first writer's."""

from __future__ import annotations

import errno
import hashlib
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from db.errors import InvalidDataset, LinkUnsupported
from db.publish import Published, publish, sweep_tmp
from tests.db.ledger import together


def of(data: bytes, created: bool) -> Published:
    return Published(created, len(data), hashlib.sha256(data).hexdigest())


def listing(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def test_the_first_writer_makes_the_file_and_later_ones_learn_of_it(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "folder"
    assert publish(folder, "part", lambda file: file.write(b"first") and None) == of(b"first", created=True)
    assert publish(folder, "part", lambda file: file.write(b"second!") and None) == of(b"first", created=False)
    assert (folder / "part").read_bytes() == b"first"
    assert listing(folder) == ["part"]


def test_of_12_writers_at_once_one_wins(tmp_path: Path) -> None:
    for round_ in range(10):
        data = [f"{number} ".encode() * 1000 for number in range(12)]
        made = together(
            12, lambda n, data=data, r=round_: publish(tmp_path, f"{r}", lambda f: f.write(data[n]) and None)
        )  # type: ignore[misc]
        (winner,) = [number for number, published in enumerate(made) if published.created]
        assert made == [of(data[winner], created=number == winner) for number in range(12)]
        assert (tmp_path / f"{round_}").read_bytes() == data[winner]
    assert len(listing(tmp_path)) == 10


@pytest.mark.timeout(20)
@pytest.mark.parametrize("kind", ["file", "link"])
def test_something_else_in_the_place_of_the_temporary_folder(tmp_path: Path, kind: str) -> None:
    temp = tmp_path / "_tmp"
    temp.symlink_to(tmp_path / "nowhere") if kind == "link" else temp.touch()
    with pytest.raises(InvalidDataset if kind == "link" else NotADirectoryError, match=re.escape(str(temp))):
        publish(tmp_path, "part", lambda file: None)


@pytest.mark.skipif(sys.platform != "linux", reason="a file system that makes no folders: /proc")
def test_a_file_system_that_makes_no_folders(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="/proc/nightmill"):
        publish(Path("/proc/nightmill/out"), "part", lambda file: None)


def test_an_exception_in_the_writer_leaves_nothing(tmp_path: Path) -> None:
    """pyarrow closes such a file as a valid, short one."""

    def write(file: BinaryIO) -> None:
        with pq.ParquetWriter(file, pa.schema({"a": pa.int64()})) as writer:
            writer.write_table(pa.table({"a": [1]}))
            raise RuntimeError("the engine broke")

    with pytest.raises(RuntimeError, match="the engine broke"):
        publish(tmp_path, "part.parquet", write)
    assert listing(tmp_path) == []


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 1 MiB."""
    folder = tmp_path / "small"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)]
    try:
        mounted = subprocess.run(mount, capture_output=True, text=True)
    except FileNotFoundError:
        pytest.skip("there is no mount command")
    if mounted.returncode:
        pytest.skip(f"no file system can be mounted here: {mounted.stderr.strip()}")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_a_full_disk_leaves_nothing_and_the_next_try_succeeds(small_disk: Path) -> None:
    with pytest.raises(OSError, match="No space left") as caught:
        publish(small_disk, "part", lambda file: file.write(bytes(2 << 20)) and None)
    assert caught.value.errno == errno.ENOSPC
    assert listing(small_disk) == []
    assert publish(small_disk, "part", lambda file: file.write(bytes(1 << 19)) and None).created


@pytest.mark.parametrize("number", [errno.EPERM, errno.EOPNOTSUPP])
def test_a_file_system_without_links_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    def link(*names: str, **folders: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "link", link)
    with pytest.raises(LinkUnsupported, match="no hard links") as caught:
        publish(tmp_path, "part", lambda file: file.write(b"x") and None)
    assert caught.value.folder == str(tmp_path)
    assert listing(tmp_path) == []


def test_a_killed_writer_leaves_a_temporary_file_for_the_sweep(tmp_path: Path) -> None:
    code = (
        "import os, pathlib, sys; from db.publish import publish\n"
        "def write(file):\n"
        "    file.write(b'half'); file.flush(); os.kill(os.getpid(), 9)\n"
        "publish(pathlib.Path(sys.argv[1]), 'part', write)"
    )
    assert subprocess.run([sys.executable, "-c", code, str(tmp_path)]).returncode == -9
    folder, left = listing(tmp_path)
    assert folder == "_tmp"
    assert left.startswith("_tmp/part.")
    assert sweep_tmp(tmp_path, older_than=3600) == 0
    os.utime(tmp_path / left, (time.time() - 3601,) * 2)
    assert sweep_tmp(tmp_path, older_than=3600) == 1
    assert listing(tmp_path) == []
    assert sweep_tmp(tmp_path, older_than=0) == 0
