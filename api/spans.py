"""When a job ends, in words: from and to."""

from __future__ import annotations

from datetime import timedelta, tzinfo

from api.schemas import EndView

CLOSE = timedelta(minutes=5)  # ends that lie nearer to each other than this are shown to the second


def span(ends: EndView, zone: tzinfo | None = None) -> str:
    """`03:10–03:35`, `03:10:20–03:11:05`, `2026-11-30 23:50–2026-12-01 00:40`, in a zone (none: this machine's)."""
    earliest, latest = ends.earliest.astimezone(zone), ends.latest.astimezone(zone)
    form = "%H:%M:%S" if latest - earliest < CLOSE else "%H:%M"
    if earliest.date() != latest.date():
        form = f"%Y-%m-%d {form}"
    return f"{earliest:{form}}–{latest:{form}}"
