"""Dataset URIs: a path or file:///path on this machine, or s3://bucket/key, under a data root. All else is refused.

URIs are taken apart here, by these few rules, and never given to a library that knows other schemes, other hosts or
options. Which hosts are reached with which credentials is the service's own affair (db.settings).
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import unquote_to_bytes

from db import s3_uris
from db.errors import DatasetRefused
from db.stores import Place, S3Path, S3Service, store_of
from db.stores.places import contains

SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")
HIDING = re.compile(r"%(?:2[ef]|5c|25|00)", re.IGNORECASE)  # . / \ % NUL
HIDES = "hides a dot, slash, backslash, percent sign or NUL behind a % escape"
NOT_TEXT = re.compile(r"[\x00-\x1f\x7f\\\ud800-\udfff]")  # control characters, backslash, lone surrogates
MAX_OUTPUT_BYTES = 1024  # the database keeps open outputs distinct by an index, whose entries are limited
ANY = "*"  # in the names of an input's files: any characters


def root(text: str, service: S3Service) -> Place:
    """The root that an operator names: a folder, resolved, or s3://bucket/prefix. Raises DatasetRefused."""
    if s3_uris.is_s3(text):
        bucket, key = _bucket_and_key(text)
        return S3Path(bucket, key, service)
    return Path(os.path.realpath(text))


def locate(uri: str, roots: Sequence[Place]) -> Place:
    """The place that a URI names, under a root, whether or not something is there. Raises DatasetRefused.

    Links are followed first: what is compared is where the bytes lie.
    """
    if s3_uris.is_s3(uri):
        return _in_bucket(uri, roots)
    path = _path(uri)
    try:
        real = Path(os.path.realpath(path))
    except (OSError, ValueError):
        raise DatasetRefused(uri, "is not a usable path") from None
    folders = (Path(os.path.realpath(root)) for root in roots if isinstance(root, Path))
    if not any(real.is_relative_to(folder) for folder in folders):
        raise DatasetRefused(uri, "lies outside the data roots")
    return real


def resolve(uri: str, roots: Sequence[Place]) -> Place:
    """The existing file or folder that a URI names: absolute, free of links, under a root; or, with `*` in its names,
    the place of files that db.datasets finds. Existence is told inside the roots only. Raises DatasetRefused."""
    if ANY in uri:
        return _pattern(uri, roots)
    place = locate(uri, roots)
    if isinstance(place, S3Path):
        if store_of(place).look(place) is None:
            raise DatasetRefused(uri, "does not exist")
        return place
    mode = _mode(uri, place)
    if mode is None:
        raise DatasetRefused(uri, "does not exist")
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        raise DatasetRefused(uri, "is neither a file nor a folder")
    return place


def resolve_output(uri: str, roots: Sequence[Place]) -> Place:
    """The folder that a job may write to: absent or empty, under a root. Makes nothing. Raises DatasetRefused."""
    place = locate(uri, roots)
    if len(os.fsencode(str(place))) > MAX_OUTPUT_BYTES:
        raise DatasetRefused(uri, f"is longer than {MAX_OUTPUT_BYTES:,} bytes")
    if isinstance(place, S3Path):
        if ANY in uri:
            raise DatasetRefused(uri, "has a * in it; an output is one folder")
        entry = store_of(place).look(place)
        absent, is_folder = entry is None, entry is None or entry.is_folder
    else:
        mode = _mode(uri, place)
        absent, is_folder = mode is None, mode is None or stat.S_ISDIR(mode)
    if absent:
        return place
    if not is_folder:
        raise DatasetRefused(uri, "exists and is not a folder")
    try:
        empty = store_of(place).is_empty(place)
    except PermissionError as error:
        raise DatasetRefused(uri, f"cannot be listed: {error.strerror}") from None
    if not empty:
        raise DatasetRefused(uri, "is a folder that is not empty")
    return place


def resolve_made(uri: str, roots: Sequence[Place]) -> Place:
    """The output folder of a job under way. Buckets have no folders, so there it need not be there yet."""
    place = locate(uri, roots)
    return place if isinstance(place, S3Path) else resolve(uri, roots)


def _pattern(uri: str, roots: Sequence[Place]) -> Place:
    """The folder before the first `*` is looked for like any other; what follows stays as it is spelled."""
    if s3_uris.is_s3(uri):
        _bucket_and_key(uri)
    start, _, rest = uri.partition(ANY)
    folder, _, begun = start.rpartition("/")
    names = (begun + ANY + rest).rstrip("/").split("/")
    if any(ANY * 2 in name for name in names):
        raise DatasetRefused(uri, "has a ** in it; folders named key=value are read by themselves")
    if any(name in ("", ".", "..") for name in names):
        raise DatasetRefused(uri, "has an empty name, `.` or `..` after a *")
    spelled = names if not uri.lower().startswith("file:") else _path("file:///" + "/".join(names))[1:].split("/")
    if reason := fault("/".join(spelled)):
        raise DatasetRefused(uri, reason)
    place = resolve(folder or "/", roots)
    for name in spelled:
        place = place / name
    return place


def _in_bucket(uri: str, roots: Sequence[Place]) -> S3Path:
    bucket, key = _bucket_and_key(uri)
    for root in roots:
        if isinstance(root, S3Path):
            place = S3Path(bucket, key, root.service)
            if contains(root, place):
                return place
    raise DatasetRefused(uri, "lies outside the data roots")


def _bucket_and_key(uri: str) -> tuple[str, str]:
    reason, bucket, key = s3_uris.split(uri)
    reason = reason or fault(f"/{key}")
    if reason:
        raise DatasetRefused(s3_uris.without_secrets(uri), reason)
    return bucket, key


def _path(uri: str) -> str:
    """The path that a URI spells. A plain path is taken letter by letter; in a file URI, %XX is a byte."""
    path = uri
    if uri.lower().startswith("file:"):
        path = _decoded(uri)
    elif SCHEME.match(uri):
        scheme = uri.split(":", 1)[0]
        raise DatasetRefused(uri, f"has the scheme {scheme!r}; only paths, file:///… and s3://… are read")
    if not path.startswith("/"):
        raise DatasetRefused(uri, "is not an absolute path")
    if path.startswith("//"):
        raise DatasetRefused(uri, "names a host")
    if reason := fault(path):
        raise DatasetRefused(uri, reason)
    return path


def fault(path: str) -> str | None:
    """Why a path is refused by its spelling alone; None when it is not. Files inside a dataset's folder obey it too."""
    if NOT_TEXT.search(path):
        return "contains a backslash, a control character or one that is not text"
    if HIDING.search(path):
        return HIDES
    if ".." in path.split("/"):
        return "goes up by `..`"
    return "chains addresses by `::`" if "::" in path else None


def _decoded(uri: str) -> str:
    rest = uri[len("file:") :]
    if not rest.startswith("///"):
        raise DatasetRefused(uri, "must have the form file:///path, without a host")
    if "?" in rest or "#" in rest:
        raise DatasetRefused(uri, "has a query or fragment; write %3F or %23 for ? or # in a name")
    if HIDING.search(rest):
        raise DatasetRefused(uri, HIDES)
    try:
        return unquote_to_bytes(rest[2:]).decode()
    except UnicodeError:
        raise DatasetRefused(uri, "is not UTF-8") from None


def _mode(uri: str, path: Path) -> int | None:
    try:
        return os.lstat(path).st_mode
    except FileNotFoundError:
        return None
    except OSError as error:
        raise DatasetRefused(uri, f"cannot be looked up: {error.strerror}") from None
