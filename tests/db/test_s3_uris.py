"""Addresses in buckets: what is let in, what is not, and what an error repeats of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from db import uris
from db.errors import DatasetRefused
from db.settings import Settings
from db.stores import Place, S3Path, S3Service
from tests.s3_server import put

SERVICE = S3Service("http://127.0.0.1:9", "", Path("/nowhere"))  # nothing here needs it to answer
ROOTS: list[Place] = [Path("/data"), S3Path("bucket", "team/data", SERVICE), S3Path("whole", "", SERVICE)]


@pytest.mark.parametrize(
    ("uri", "bucket", "key"),
    [
        ("s3://bucket/team/data", "bucket", "team/data"),
        ("s3://bucket/team/data/", "bucket", "team/data"),
        ("s3://bucket/team/data/a b/ü+&=.parquet", "bucket", "team/data/a b/ü+&=.parquet"),
        ("s3://bucket/team/data/day=2026-11-01%2000%3A00/x", "bucket", "team/data/day=2026-11-01%2000%3A00/x"),
        ("s3://whole", "whole", ""),
        ("s3://whole/x", "whole", "x"),
    ],
)
def test_places_under_a_root(uri: str, bucket: str, key: str) -> None:
    place = uris.locate(uri, ROOTS)
    assert isinstance(place, S3Path)
    assert (place.bucket, place.key, place.service) == (bucket, key, SERVICE)
    assert str(place) == uri.rstrip("/")


HOSTILE = [
    ("s3://key:secret@bucket/team/data/x?endpoint_override=127.0.0.1:9&scheme=http", "credentials or a port"),
    ("s3://secret@bucket/team/data/x", "credentials or a port"),
    ("s3://bucket:9000/team/data/x", "credentials or a port"),
    ("s3://bucket/team/data/x?endpoint_override=127.0.0.1:9", "query or fragment"),
    ("s3://bucket/team/data/x?secret_key=secret", "query or fragment"),
    ("s3://bucket?secret_key=secret", "query or fragment"),
    ("s3://bucket/team/data/x#secret", "query or fragment"),
    ("s3://bucket/team/data-2/x", "outside the data roots"),
    ("s3://bucket/team", "outside the data roots"),
    ("s3://bucket", "outside the data roots"),
    ("s3://bucket/", "outside the data roots"),
    ("s3://other/team/data/x", "outside the data roots"),
    ("s3://bucket/team/data/../../x", "goes up"),
    ("s3://bucket/team/data/..", "goes up"),
    ("s3://bucket/../whole/x", "goes up"),
    ("s3://bucket/team/data/./x", "an empty name or `.`"),
    ("s3://bucket//team/data/x", "an empty name"),
    ("s3://bucket/team/data//x", "an empty name"),
    ("s3://bucket/team/data/%2e%2e/x", "behind a % escape"),
    ("s3://bucket/team/data/a%2fb", "behind a % escape"),
    ("s3://bucket/team/data/%252e", "behind a % escape"),
    ("s3://bucket/team/data/\0", "control character"),
    ("s3://bucket/team/data/a\nb", "control character"),
    ("s3://bucket/team/data\\x", "backslash"),
    ("s3://bucket/team/data/\ud800", "not text"),
    ("s3://bucket/team/data/x::http:", "chains addresses"),
    ("s3://bucket/team/data/" + "x" * 900, "more than 900 bytes"),
    ("s3:///team/data/x", "no bucket's name"),
    ("s3://", "no bucket's name"),
    ("s3://Bucket/team/data/x", "no bucket's name"),
    ("s3://bu/x", "no bucket's name"),
    ("s3://127.0.0.1/", "outside the data roots"),
    ("s3://bucket..x/team", "no bucket's name"),
    ("s3:bucket/team/data/x", "s3://bucket/key"),
    ("s3:/bucket/team/data/x", "s3://bucket/key"),
    ("S3://bucket/team/data/x", "s3://bucket/key"),
    ("s3a://bucket/team/data/x", "s3://bucket/key"),
    ("s3n://bucket/team/data/x", "s3://bucket/key"),
    ("simplecache::s3://bucket/team/data/x", "scheme 'simplecache'"),
    ("/data/x::s3://bucket/team/data/x", "chains addresses"),
]


@pytest.mark.parametrize(("uri", "reason"), HOSTILE)
@pytest.mark.parametrize("resolve", [uris.locate, uris.resolve, uris.resolve_output])
def test_everything_else_is_refused_and_no_secret_repeated(resolve: object, uri: str, reason: str) -> None:
    with pytest.raises(DatasetRefused, match=reason) as caught:
        resolve(uri, ROOTS)  # type: ignore[operator]
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("uri", "reason"),
    [
        ("s3://whole/**/x", r"has a \*\*"),
        ("s3://key:sec*ret@whole/x", "credentials or a port"),
        ("s3://bucket/team/*/x", "outside the data roots"),
        ("s3://bucket*/x", "no bucket's name"),
        ("/data/*/../x", "after a"),
        ("/data/*//x", "after a"),
        ("/data/*/%2e%2e/x", "behind a % escape"),
        ("/*/x", "outside the data roots"),
        ("/dat*/x", "outside the data roots"),
    ],
)
def test_patterns_that_are_refused(uri: str, reason: str) -> None:
    with pytest.raises(DatasetRefused, match=reason):
        uris.resolve(uri, ROOTS)


def test_what_is_there_and_what_is_not(bucket: S3Path) -> None:
    roots = [bucket / "data"]
    put(bucket / "data" / "in" / "a.parquet", b"x")
    put(bucket / "secret" / "a.parquet", b"x")
    assert uris.resolve(f"{bucket}/data/in/a.parquet", roots) == bucket / "data" / "in" / "a.parquet"
    assert uris.resolve(f"{bucket}/data/in/", roots) == bucket / "data" / "in"
    assert uris.resolve(f"{bucket}/data/in/*.parquet", roots) == bucket / "data" / "in" / "*.parquet"
    for absent in ("in/a", "in/a.parq", "i", "in/b.parquet"):
        with pytest.raises(DatasetRefused, match="does not exist"):
            uris.resolve(f"{bucket}/data/{absent}", roots)
    with pytest.raises(DatasetRefused, match="outside the data roots"):
        uris.resolve(f"{bucket}/secret/a.parquet", roots)
    assert uris.resolve_output(f"{bucket}/data/out", roots) == bucket / "data" / "out"
    for output, reason in (("in", "not empty"), ("in/a.parquet", "exists and is not a folder"), ("o*", "one folder")):
        with pytest.raises(DatasetRefused, match=reason):
            uris.resolve_output(f"{bucket}/data/{output}", roots)


def test_settings_say_where(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NIGHTMILL_S3_ENDPOINT", "http://127.0.0.1:9000")
    monkeypatch.setenv("AWS_REGION", "eu-north-1")
    monkeypatch.setenv("NIGHTMILL_DATA_ROOTS", f'["s3://bucket/team", "{tmp_path}"]')
    settings = Settings(home=tmp_path / "home")
    *_, first, second = settings.roots
    assert (str(first), second) == ("s3://bucket/team", tmp_path)
    assert isinstance(first, S3Path)
    assert first.service == S3Service("http://127.0.0.1:9000", "eu-north-1", tmp_path / "home" / "scratch")


@pytest.mark.parametrize("endpoint", ["ftp://h", "http://key:secret@h", "http://h/?x", "h:9000"])
def test_an_endpoint_is_an_address_and_nothing_more(endpoint: str) -> None:
    with pytest.raises(ValueError, match="without credentials"):
        Settings(s3_endpoint=endpoint)


def test_a_root_that_is_none_is_told_at_the_start() -> None:
    with pytest.raises(DatasetRefused, match="no bucket's name"):
        Settings(data_roots=("s3://B/x",))
