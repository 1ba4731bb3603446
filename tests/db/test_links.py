"""Links that were put into a folder after it was checked: no store reads, makes or removes anything through them."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

import pytest

from db import dead_letters, files, openai_files
from db.errors import InvalidDataset
from db.publish import publish, sweep_tmp
from db.settings import Settings
from db.stores import folders, store_of
from tests.db.test_files import parquet_bytes

STORE = store_of(Path("/"))


@pytest.fixture
def others(tmp_path: Path) -> Path:
    """Another tenant's folder, with a file that no age protects."""
    folder = tmp_path / "bolt"
    folder.mkdir()
    (folder / "part-00000.parquet").write_bytes(b"theirs")
    os.utime(folder / "part-00000.parquet", (0, 0))
    return folder


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    folder = tmp_path / "acme" / "out"
    folder.mkdir(parents=True)
    return folder


WAYS: dict[str, tuple[str, Callable[[Path], object]]] = {
    "sweep": ("_tmp", lambda out: sweep_tmp(out, 3600)),
    "journal": ("_tmp", lambda out: STORE.journal(out / "_tmp" / "new.rows").append(b"x")),
    "temp": ("_tmp", lambda out: publish(out, "new.parquet", lambda sink: None)),
    "create": ("_errors", lambda out: publish(out / "_errors", "new.parquet", lambda sink: None)),
    "prepare": ("_errors", lambda out: STORE.prepare(out / "_errors" / "new")),
    "remove": ("_tmp", lambda out: STORE.remove([out / "_tmp" / "part-00000.parquet"])),
    "walk": ("_tmp", lambda out: list(STORE.walk(out / "_tmp"))),
    "digest": ("_errors", lambda out: STORE.digest(out / "_errors" / "part-00000.parquet")),
    "retry": ("_errors", lambda out: dead_letters.folder_of("job", out)),
}


@pytest.mark.parametrize("way", WAYS)
def test_nothing_goes_through_a_link_inside_an_output(mine: Path, others: Path, way: str) -> None:
    name, do = WAYS[way]
    (mine / name).symlink_to(others)
    with pytest.raises(InvalidDataset, match="a part of the path is a symbolic link") as caught:
        do(mine)
    assert (caught.value.code, caught.value.file.startswith(str(mine / name))) == ("changed", True)
    assert {path.name: path.read_bytes() for path in others.iterdir()} == {"part-00000.parquet": b"theirs"}


def test_an_output_that_became_a_link_while_it_was_written(mine: Path, others: Path) -> None:
    def write(sink: BinaryIO) -> None:
        sink.write(b"mine")
        mine.rename(mine.parent / "moved")
        mine.symlink_to(others)

    with pytest.raises(InvalidDataset, match="symbolic link"):
        publish(mine, "new.parquet", write)
    assert [path.name for path in others.iterdir()] == ["part-00000.parquet"]


@pytest.mark.parametrize("linked", ["acme", "acme/out", "acme/out/_tmp", "acme/out/_errors"])
@pytest.mark.parametrize("way", WAYS)
def test_a_link_that_comes_at_the_last_moment_is_not_followed_either(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str, linked: str
) -> None:
    """A part of the path becomes a link as soon as the path was looked at as a whole."""
    name, do = WAYS[way]
    theirs, mine = tmp_path / "bolt" / "out", tmp_path / "acme" / "out"
    for folder in (theirs, mine):
        for inside in ("_tmp", "_errors"):
            (folder / inside).mkdir(parents=True)
            (folder / inside / "part-00000.parquet").write_bytes(folder.parent.name.encode())
            os.utime(folder / inside / "part-00000.parquet", (0, 0))
    before = {path: path.lstat().st_mtime_ns for path in theirs.rglob("*")}
    enter, swapped = folders._enter, tmp_path / linked

    def late(fd: int, folder: Path, name: str, make: bool = False) -> int:
        if folder / name == swapped and not swapped.is_symlink():
            swapped.rename(tmp_path / "moved")
            swapped.symlink_to(tmp_path / linked.replace("acme", "bolt"))
        return enter(fd, folder, name, make)

    monkeypatch.setattr(folders, "_enter", late)
    if linked.startswith(f"acme/out/{name}") or linked in {"acme", "acme/out"}:
        with pytest.raises(InvalidDataset, match="a part of the path is a symbolic link"):
            do(mine)
        assert swapped.is_symlink()
    assert {path: path.lstat().st_mtime_ns for path in theirs.rglob("*")} == before


def test_a_folder_that_cannot_be_listed_is_not_left_out(mine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (mine / "date=1").mkdir()
    (mine / "date=2" / "a").mkdir(parents=True)
    listdir, secret = os.listdir, os.stat(mine / "date=2" / "a").st_ino

    def forbidden(fd: int) -> list[str]:
        if os.fstat(fd).st_ino == secret:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        return listdir(fd)

    monkeypatch.setattr(os, "listdir", forbidden)
    with pytest.raises(InvalidDataset, match="cannot be listed: Permission denied") as caught:
        list(STORE.walk(mine))
    assert (caught.value.code, caught.value.file) == ("not_a_folder", str(mine / "date=2" / "a"))


def test_a_published_name_that_is_a_link_is_not_read(mine: Path, others: Path) -> None:
    (mine / "_manifest.json").symlink_to(others / "part-00000.parquet")
    with pytest.raises(InvalidDataset, match="symbolic link"):
        publish(mine, "_manifest.json", lambda sink: None)


def test_the_services_own_folders_may_be_links_of_the_operator(tmp_path: Path) -> None:
    (tmp_path / "disk" / "uploads").mkdir(parents=True)
    (tmp_path / "home").symlink_to(tmp_path / "disk")
    settings = Settings(home=tmp_path / "home")
    data = parquet_bytes()
    stored = files.store_upload(settings.uploads, upload_id="upl_1", filename="a", chunks=[data], max_bytes=1 << 20)
    assert (stored.num_rows, (settings.uploads / "upl_1.parquet").read_bytes()) == (3, data)
    assert openai_files.store(settings.files, "file-1", [b"x"], most=10, shown="a") == 1
    assert openai_files.file_path(settings, "file-1").read_bytes() == b"x"
