"""From a request to a specification; db.planning makes a job of it."""

from __future__ import annotations

from api.errors import naming
from api.schemas import JobRequest
from db import planning, templates
from db.errors import InvalidJob
from db.planning import Plan
from db.settings import Settings
from db.specs import Generate, JobSpec
from db.tenants import Folders


def specify(request: JobRequest, settings: Settings) -> JobSpec:
    """The specification to store: server defaults filled in, template variables found. Reads no data.

    Raises InvalidJob for a template that is not valid or whose columns contradict it.
    """
    values = request.model_dump(exclude={"idempotency_key"})
    values["model"] = request.model or settings.model
    if isinstance(request.recipe, Generate):
        values["recipe"]["columns"] = _template_columns(request.recipe)
    return JobSpec.model_validate(values)


def plan(spec: JobSpec, job_id: str, folders: Folders, settings: Settings, answer_tokens: int | None = None) -> Plan:
    """As db.planning.plan. Raises FieldError around DatasetRefused, UploadNotFound, InvalidDataset, and InvalidJob."""
    return planning.plan(spec, job_id, folders, settings, naming, answer_tokens)


def _template_columns(recipe: Generate) -> tuple[str, ...]:
    found = tuple(sorted(templates.variables(recipe.template)))
    if recipe.columns and set(recipe.columns) != set(found):
        names = ", ".join(repr(name) for name in found)
        raise InvalidJob("recipe.columns", f"the template uses {names or 'no column'}; leave this field out")
    return found
