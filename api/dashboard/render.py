"""Pages from templates, with the headers that let a browser load nothing from elsewhere."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import jinja2
from fastapi import Request
from fastapi.responses import HTMLResponse

from api.dashboard.session import FORM_COOKIE, FORM_FIELD, Viewer, keep
from api.spans import span

FOLDER = Path(__file__).parent
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "Cache-Control": "no-store",
}
TONES = {
    "completed": "good", "completed_with_errors": "warn", "failed": "bad", "cancelled": "still", "expired": "bad",
    "skipped": "still", "waiting": "wait", "paused": "wait", "validating": "live", "running": "live",
    "finalizing": "live", "done": "good", "cancelling": "wait", "expiring": "wait", "started": "live",
}  # fmt: skip

MEASURES = {
    "row_latency_seconds": "Row latency", "queue_wait_seconds": "Queue wait", "prefill_tokens_per_second": "Prefill",
    "decode_tokens_per_second": "Decode", "batch_occupancy": "Batch occupancy", "kv_occupancy": "KV occupancy",
}  # fmt: skip


def _number(value: float | None, digits: int = 0) -> str:
    return "–" if value is None else f"{value:,.{digits}f}"


def _share(value: float | None) -> str:
    return "–" if value is None else f"{100 * value:.1f} %"


def _measured(value: float, measure: str) -> str:
    """With the unit that the measure's name ends in: `1.47 s`, `36.1 tokens/s`, `84 %`."""
    if measure.endswith("_occupancy"):
        return f"{100 * value:.0f} %"
    unit = "s" if measure.endswith("_seconds") else "tokens/s"
    return f"{value:,.0f} {unit}" if value >= 1000 else f"{value:.3g} {unit}"


def _bytes(value: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024 or unit == "GiB":
            return f"{value:,.0f} {unit}" if unit == "B" else f"{value:,.1f} {unit}"
        value /= 1024
    raise AssertionError("the last unit takes everything")


def _duration(seconds: float | None) -> str:
    """`0.4 s`, `42 s`, `4 min 05 s`, `2 h 03 min`."""
    if seconds is None:
        return "–"
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours:,} h {minutes:02} min"
    return f"{minutes} min {rest:02} s" if minutes else f"{rest} s"


def _moment(value: datetime | None) -> str:
    return "–" if value is None else f"{value.astimezone(UTC):%Y-%m-%d %H:%M}"


def _words(status: str) -> str:
    return status.replace("_", " ")


ENVIRONMENT = jinja2.Environment(
    loader=jinja2.FileSystemLoader(FOLDER / "templates"),
    autoescape=True,
    undefined=jinja2.StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
ENVIRONMENT.filters |= {
    "number": _number, "share": _share, "bytes": _bytes, "duration": _duration, "moment": _moment, "words": _words,
    "cost": lambda value: _number(value, 2), "measured": _measured, "span": lambda ends: span(ends, UTC),
    "measure": MEASURES.__getitem__, "tone": lambda status: TONES.get(status, "still"), "json": json.dumps,
}  # fmt: skip


def page(request: Request, viewer: Viewer | None, template: str, *, status: int = 200, **values: Any) -> HTMLResponse:
    """A whole page. `viewer` is None on the one that asks who it is."""
    shown = {"viewer": viewer, "form_field": FORM_FIELD, "path": request.url.path, **values}
    response = HTMLResponse(ENVIRONMENT.get_template(template).render(shown), status, HEADERS)
    if viewer is not None and request.cookies.get(FORM_COOKIE) != viewer.form_token:
        keep(request, response, FORM_COOKIE, viewer.form_token)
    return response
