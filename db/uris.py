"""Dataset URIs: a path or file:///path on this machine, under a data root. Everything else is refused.

URIs are taken apart here, by these few rules, and never given to a library that knows other schemes or a network.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import unquote_to_bytes

from db.errors import DatasetRefused

SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")
HIDING = re.compile(r"%(?:2[ef]|5c|25|00)", re.IGNORECASE)  # . / \ % NUL
HIDES = "hides a dot, slash, backslash, percent sign or NUL behind a % escape"
NOT_TEXT = re.compile(r"[\x00-\x1f\x7f\\\ud800-\udfff]")  # control characters, backslash, lone surrogates
MAX_OUTPUT_BYTES = 1024  # the database keeps open outputs distinct by an index, whose entries are limited


def resolve(uri: str, roots: Sequence[Path]) -> Path:
    """The existing file or folder that a URI names: absolute, free of links, under a root. Raises DatasetRefused."""
    path = _under_root(uri, roots)
    mode = _mode(uri, path)
    if mode is None:
        raise DatasetRefused(uri, "does not exist")
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        raise DatasetRefused(uri, "is neither a file nor a folder")
    return path


def resolve_output(uri: str, roots: Sequence[Path]) -> Path:
    """The folder that a job may write to: absent or empty, under a root. Makes nothing. Raises DatasetRefused."""
    path = _under_root(uri, roots)
    if len(os.fsencode(path)) > MAX_OUTPUT_BYTES:
        raise DatasetRefused(uri, f"is longer than {MAX_OUTPUT_BYTES:,} bytes")
    mode = _mode(uri, path)
    if mode is None:
        return path
    if not stat.S_ISDIR(mode):
        raise DatasetRefused(uri, "exists and is not a folder")
    try:
        with os.scandir(path) as entries:
            empty = next(entries, None) is None
    except OSError as error:
        raise DatasetRefused(uri, f"cannot be listed: {error.strerror}") from None
    if not empty:
        raise DatasetRefused(uri, "is a folder that is not empty")
    return path


def _under_root(uri: str, roots: Sequence[Path]) -> Path:
    """Links are followed first: what is compared is where the bytes lie. Existence is told inside the roots only."""
    path = _path(uri)
    try:
        real = Path(os.path.realpath(path))
    except (OSError, ValueError):
        raise DatasetRefused(uri, "is not a usable path") from None
    if not any(real.is_relative_to(os.path.realpath(root)) for root in roots):
        raise DatasetRefused(uri, "lies outside the data roots")
    return real


def _path(uri: str) -> str:
    """The path that a URI spells. A plain path is taken letter by letter; in a file URI, %XX is a byte."""
    path = uri
    if uri.lower().startswith("file:"):
        path = _decoded(uri)
    elif SCHEME.match(uri):
        raise DatasetRefused(uri, f"has the scheme {uri.split(':', 1)[0]!r}; only paths and file:///… are read")
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
