"""The spelling of s3:// addresses: a bucket and a key, and nothing that could say where to go or who one is."""

from __future__ import annotations

import re

START = "s3://"
SCHEMES = ("s3:", "s3a:", "s3n:")
BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
MAX_KEY_BYTES = 900  # a store takes 1,024; names of parts and checkpoints are put behind it


def is_s3(uri: str) -> bool:
    """Whether the address means a bucket, well spelled or not."""
    return uri.lower().startswith(SCHEMES)


def split(uri: str) -> tuple[str | None, str, str]:
    """What is wrong with the address, if anything, and its bucket and key. The key has no slash at its ends."""
    if not uri.startswith(START):
        return "must have the form s3://bucket/key", "", ""
    rest = uri[len(START) :]
    host, _, key = rest.partition("/")
    if "@" in host or ":" in host:
        return "names credentials or a port; these are the service's own and stand in its environment", "", ""
    if "?" in rest or "#" in rest:
        return "has a query or fragment; endpoint, region and credentials are the service's own", "", ""
    if not BUCKET.fullmatch(host) or ".." in host:
        return "has no bucket's name: 3 to 63 lower-case letters, digits, dots and hyphens", "", ""
    key = key.removesuffix("/")
    return fault(key), host, key


def fault(key: str) -> str | None:
    """Why a key is refused by its spelling alone; None when it is not."""
    if len(key.encode(errors="replace")) > MAX_KEY_BYTES:
        return f"has a key of more than {MAX_KEY_BYTES} bytes"
    if any(name in ("", ".") for name in key.split("/")) and key:
        return "has an empty name or `.` between its slashes"
    return None


def without_secrets(uri: str) -> str:
    """The address as it may be repeated in an error: people put keys before the @ and behind the ?."""
    scheme, mark, rest = uri.partition("//")
    host, slash, key = rest.partition("/")
    if "@" in host:
        host = "…@" + host.rpartition("@")[2]
    for start in "?#":
        key, found, _ = key.partition(start)
        key += found and f"{found}…"
        host = host.partition(start)[0]
    return scheme + mark + host + slash + key
