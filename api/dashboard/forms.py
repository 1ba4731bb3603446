"""What a form says, as a request of the API: empty fields are left out, and a recipe gets its own fields alone."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from db.errors import InvalidJob

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
    job = {**job_of(form), "input": form.get("input", "")}
    if form.get("only_new") == "new_by_key":
        job["only_new"] = {"key": form.get("key", "")}
    elif form.get("only_new") == "new_by_row":
        job["only_new"] = {}
    named = {name: form[name] for name in ("name", "cron", "timezone", "overlap", "misfire") if form.get(name)}
    return {**named, "job": job}


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
