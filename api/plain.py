"""A job as it is sent: what Python writes it with, as JSON has it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from db.json_schemas import as_schema


def plain_job(job: dict[str, Any]) -> dict[str, Any]:
    """The job with its Pydantic models as schemas."""

    def plain(part: Mapping[str, Any]) -> dict[str, Any]:
        return {name: as_schema(value) if name == "json_schema" else value for name, value in part.items()}

    recipe = job.get("recipe")
    if isinstance(recipe, Mapping):
        recipe = plain(recipe)
        if isinstance(recipe.get("format"), Mapping):
            recipe["format"] = plain(recipe["format"])
        job["recipe"] = recipe
    return job
