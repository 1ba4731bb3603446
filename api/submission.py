"""From a request to a job that can run: everything that the specification and the dataset's footer can tell.

What only the worker can know (tokenizer, chat template, model) is checked there, before the first row runs.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from api.errors import naming
from api.schemas import JobRequest
from db import columns, datasets, files, templates, uris
from db.errors import InvalidJob
from db.settings import Settings
from db.specs import Generate, JobSpec


@dataclass(frozen=True, slots=True)
class Plan:
    """What a valid job needs besides its specification. `num_rows` is after max_rows."""

    output: Path
    num_rows: int


def specify(request: JobRequest, settings: Settings) -> JobSpec:
    """The specification to store: server defaults filled in, template variables found. Reads no data.

    Raises InvalidJob for a template that is not valid or whose columns contradict it.
    """
    values = request.model_dump(exclude={"idempotency_key"})
    values["model"] = request.model or settings.model
    if isinstance(request.recipe, Generate):
        values["recipe"]["columns"] = _template_columns(request.recipe)
    return JobSpec.model_validate(values)


def plan(spec: JobSpec, job_id: str, settings: Settings) -> Plan:
    """Check the input's footers against the specification, and the output's place.

    Raises RefusedField around DatasetRefused, UploadNotFound or InvalidDataset, and InvalidJob.
    """
    with naming("input"):
        source = files.resolve_input(spec.input, settings)
        dataset = datasets.inspect(source)
    _check_columns(spec, dataset)
    num_rows = min(dataset.num_rows, spec.max_rows or dataset.num_rows)
    if num_rows > settings.max_job_rows:
        raise InvalidJob("input", f"{num_rows} rows are more than this server's limit of {settings.max_job_rows}")
    return Plan(_output(spec, job_id, source, settings), num_rows)


def _template_columns(recipe: Generate) -> tuple[str, ...]:
    found = tuple(sorted(templates.variables(recipe.template)))
    if recipe.columns and set(recipe.columns) != set(found):
        names = ", ".join(repr(name) for name in found)
        raise InvalidJob("recipe.columns", f"the template uses {names or 'no column'}; leave this field out")
    return found


def _check_columns(spec: JobSpec, dataset: datasets.Dataset) -> None:
    for field, check in columns.input_checks(spec):
        with naming(field):
            check(dataset)
    columns.output_schema(spec, dataset.schema)


def _output(spec: JobSpec, job_id: str, source: Path, settings: Settings) -> Path:
    if spec.output is None:
        return settings.data_folder / job_id
    with naming("output"):
        output = uris.resolve_output(spec.output, settings.roots)
    if source.is_dir() and output.is_relative_to(source):
        raise InvalidJob("output", f"{output} lies inside the input folder {source}")
    return output
