"""What a form says, as a request of the API: empty fields are left out, and a recipe gets its own fields alone."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from typing import Any
from zoneinfo import ZoneInfo

from db import timetable
from db.errors import InvalidJob, InvalidSchedule

COLUMN = frozenset({"summarize", "label", "extract", "chat"})


def job_of(form: Mapping[str, str]) -> dict[str, Any]:
    """The fields of a job but its input. Raises InvalidJob for what is no number or no JSON."""
    kind = form.get("recipe", "summarize")
    recipe: dict[str, Any] = {"kind": kind}
    if kind in COLUMN and form.get("column"):
        recipe["column"] = form["column"]
    if kind == "label":
        recipe["labels"] = [label.strip() for label in form.get("labels", "").split(",") if label.strip()]
    if kind == "generate":
        recipe["template"] = form.get("template", "")
    if kind == "extract":
        recipe["json_schema"] = _json("schema", form.get("schema", ""))
    job: dict[str, Any] = {"recipe": recipe}
    job |= {name: form[name] for name in ("model", "output") if form.get(name)}
    if form.get("max_rows"):
        job["max_rows"] = _number("max_rows", form["max_rows"])
    if form.get("max_tokens"):
        job["sampling"] = {"max_tokens": _number("max_tokens", form["max_tokens"])}
    return job


def schedule_of(form: Mapping[str, str]) -> dict[str, Any]:
    """The fields of a schedule. Raises InvalidJob and InvalidSchedule for what cannot be read as one."""
    job = {**job_of(form), "input": form.get("input", "")}
    if form.get("only_new") == "new_by_key":
        job["only_new"] = {"key": form.get("key", "")}
    elif form.get("only_new") == "new_by_row":
        job["only_new"] = {}
    named = {name: form[name] for name in ("name", "cron", "timezone", "overlap", "misfire") if form.get(name)}
    zone = timetable.zone(form.get("timezone") or "UTC")
    moments = {name: _moment(form[name], zone) for name in ("start_at", "end_at") if form.get(name)}
    spans = {f"{name}_seconds": _seconds(form, f"{name}_hours") for name in ("grace", "window")}
    return {**named, **moments, **{name: value for name, value in spans.items() if value is not None}, "job": job}


def _moment(text: str, zone: ZoneInfo) -> datetime | str:
    """A browser gives a local time without an offset: it is one of the schedule's zone. Other texts stay as they are,
    for the request's own validation to name what is wrong with them."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return text
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=zone)


def _seconds(form: Mapping[str, str], field: str) -> float | None:
    """Raises InvalidSchedule for what is no number of hours."""
    text = form.get(field)
    if not text:
        return None
    try:
        return float(text) * 3600
    except ValueError:
        raise InvalidSchedule(field, f"{text!r} is no number of hours") from None


def _number(field: str, text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise InvalidJob(field, f"{text!r} is no whole number") from None


def _json(field: str, text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidJob(field, f"not JSON: {error}") from None
