"""Dataset URIs: what is let in, and what is not."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from db import uris
from db.errors import DatasetRefused


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A data root with files, links that lead out of it, and a secret beside it."""
    root = tmp_path / "data"
    for folder in ("sub/deep", "empty", "sp ace", "ünï", "a:b"):
        (root / folder).mkdir(parents=True)
    (root / "file.parquet").touch()
    (root / "sp ace" / "50%.parquet").touch()
    (root / "ünï" / "x.parquet").touch()
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret" / "key.parquet").touch()
    (tmp_path / "data-secret").mkdir()
    (root / "out").symlink_to(tmp_path / "secret")
    (root / "out.parquet").symlink_to(tmp_path / "secret" / "key.parquet")
    (root / "in").symlink_to("sub")
    (root / "loop").symlink_to("loop")
    os.mkfifo(root / "pipe.parquet")
    return root


@pytest.mark.parametrize(
    ("uri", "place"),
    [
        ("{root}/file.parquet", "file.parquet"),
        ("file://{root}/file.parquet", "file.parquet"),
        ("FILE://{root}/file.parquet", "file.parquet"),
        ("{root}", ""),
        ("{root}/", ""),
        ("{root}//sub/./deep/", "sub/deep"),
        ("{root}/in/deep", "sub/deep"),
        ("{root}/a:b", "a:b"),
        ("{root}/sp ace", "sp ace"),
        ("file://{root}/sp%20ace", "sp ace"),
        ("{root}/sp ace/50%.parquet", "sp ace/50%.parquet"),
        ("file://{root}/%C3%BCn%c3%af/x.parquet", "ünï/x.parquet"),
    ],
)
def test_places_under_a_root(root: Path, uri: str, place: str) -> None:
    assert uris.resolve(uri.format(root=root), [root.parent / "elsewhere", root]) == root / place


HOSTILE = [
    ("", "not an absolute path"),
    ("file.parquet", "not an absolute path"),
    ("./file.parquet", "not an absolute path"),
    ("~/file.parquet", "not an absolute path"),
    ("/", "outside the data roots"),
    ("/etc/passwd", "outside the data roots"),
    ("/proc/self/environ", "outside the data roots"),
    ("/dev/stdin", "outside the data roots"),
    ("{root}-secret", "outside the data roots"),
    ("{root}/../secret/key.parquet", "goes up"),
    ("{root}/sub/../file.parquet", "goes up"),
    ("{root}/..", "goes up"),
    ("file://{root}/../secret/key.parquet", "goes up"),
    ("{root}/out/key.parquet", "outside the data roots"),
    ("{root}/out", "outside the data roots"),
    ("{root}/out.parquet", "outside the data roots"),
    ("{root}/out/absent.parquet", "outside the data roots"),
    ("{root}/loop", "neither a file nor a folder"),
    ("{root}/loop/x", "not exist|cannot be looked up"),
    ("{root}/pipe.parquet", "neither a file nor a folder"),
    ("{root}/absent.parquet", "does not exist"),
    ("{root}/file.parquet/x", "cannot be looked up"),
    ("{root}/" + "x" * 300, "cannot be looked up|not a usable path"),
    ("{root}/%2e%2e/secret/key.parquet", "behind a % escape"),
    ("file://{root}/%2E%2e/secret/key.parquet", "behind a % escape"),
    ("file://{root}%2f..%2fsecret", "behind a % escape"),
    ("file://{root}/%252e%252e/secret", "behind a % escape"),
    ("file://{root}/..%5c..%5csecret", "behind a % escape"),
    ("file://{root}/file.parquet%00.txt", "behind a % escape"),
    ("file://{root}/%ff", "not UTF-8"),
    ("file://{root}/%0a", "control character"),
    ("{root}/file.parquet\0.txt", "control character"),
    ("{root}/a\nb", "control character"),
    ("{root}\\..\\secret", "backslash"),
    ("{root}/\udcff", "not text"),
    ("{root}/\ud800", "not text"),
    ("file:{root}/file.parquet", "without a host"),
    ("file:/{root}/file.parquet", "without a host"),
    ("file://localhost{root}/file.parquet", "without a host"),
    ("file://user:password@host{root}/file.parquet", "without a host"),
    ("file://host/share/file.parquet", "without a host"),
    ("file:////host/share", "names a host"),
    ("//host/share/file.parquet", "names a host"),
    ("file://{root}/file.parquet?x=1", "query or fragment"),
    ("file://{root}/file.parquet#part", "query or fragment"),
    ("{root}/file.parquet?x=1", "does not exist"),
    ("s3://bucket/x", "outside the data roots"),
    ("http://127.0.0.1:9/x.parquet", "scheme 'http'"),
    ("https://169.254.169.254/latest/meta-data", "scheme 'https'"),
    ("gs://bucket/x", "scheme 'gs'"),
    ("hdfs://host/x", "scheme 'hdfs'"),
    ("memory://x", "scheme 'memory'"),
    ("data:text/plain,x", "scheme 'data'"),
    ("jar:file:///x!/y", "scheme 'jar'"),
    ("simplecache::file://{root}/file.parquet", "scheme 'simplecache'"),
    ("zip://x.parquet::{root}/file.zip", "scheme 'zip'"),
    ("{root}/x::http://host/y", "chains addresses"),
    ("C:\\data\\x.parquet", "scheme 'C'"),
    (" {root}/file.parquet", "not an absolute path"),
    ("upload://../x", "scheme 'upload'"),
]


@pytest.mark.parametrize(("uri", "reason"), HOSTILE)
def test_everything_else_is_refused_with_its_reason(root: Path, uri: str, reason: str) -> None:
    spelled = uri.format(root=root)
    with pytest.raises(DatasetRefused, match=reason) as caught:
        uris.resolve(spelled, [root])
    assert caught.value.uri == spelled
    assert "secret" not in caught.value.reason


@pytest.mark.parametrize("uri", [uri for uri, reason in HOSTILE if reason != "does not exist"])
def test_nothing_of_that_is_an_output_either(root: Path, uri: str) -> None:
    with pytest.raises(DatasetRefused):
        uris.resolve_output(uri.format(root=root), [root])


def test_no_roots_let_nothing_in(root: Path) -> None:
    with pytest.raises(DatasetRefused, match="outside the data roots"):
        uris.resolve(str(root / "file.parquet"), [])


def test_a_root_may_be_a_link_itself(root: Path) -> None:
    link = root.parent / "link"
    link.symlink_to(root)
    assert uris.resolve(f"{link}/file.parquet", [link]) == root / "file.parquet"
    assert uris.resolve(f"{root}/file.parquet", [link]) == root / "file.parquet"


@pytest.mark.parametrize("place", ["empty", "absent", "absent/below", "in/absent", "sp ace/absent", "absent/"])
def test_outputs_are_absent_or_empty_folders_and_are_not_made(root: Path, place: str) -> None:
    path = uris.resolve_output(f"{root}/{place}", [root])
    assert path == Path(os.path.realpath(root / place))
    assert path.exists() == (place == "empty")


@pytest.mark.parametrize(
    ("place", "reason"),
    [
        ("sub", "not empty"),
        ("file.parquet", "not a folder"),
        ("pipe.parquet", "not a folder"),
        ("file.parquet/x", "cannot be looked up"),
        ("out", "outside the data roots"),
        ("out/new", "outside the data roots"),
        ("../new", "goes up"),
        ("x/" * 600, "longer than 1,024 bytes"),
    ],
)
def test_other_outputs_are_refused(root: Path, place: str, reason: str) -> None:
    with pytest.raises(DatasetRefused, match=reason):
        uris.resolve_output(f"{root}/{place}", [root])
