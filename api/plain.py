"""A job as it is sent: what Python writes it with, as JSON has it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from api.schemas import JobRequest
from db.json_schemas import as_schema


def body_of(job: JobRequest | Mapping[str, Any]) -> dict[str, Any]:
    """The job as JSON, without what was left to the server."""
    return job.model_dump(mode="json", exclude_none=True) if isinstance(job, JobRequest) else plain_job(dict(job))


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
