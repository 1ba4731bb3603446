"""From a request to a job that can run: everything that the specification and the dataset's footer can tell.

What only the worker can know (tokenizer, chat template, model) is checked there, before the first row runs.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from api.errors import naming
from api.schemas import JobRequest
from db import datasets, files, templates, uris
from db.errors import InvalidJob
from db.settings import Settings
from db.specs import Chat, Generate, JobSpec

ADDED = ("output", "finish_reason", "error", "prompt_tokens", "cached_tokens", "output_tokens", "truncated_tokens")


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


def added_columns(spec: JobSpec) -> tuple[str, ...]:
    """Names of the columns that the job adds to those it keeps."""
    names = list(ADDED)
    if spec.recipe.kind == "label":
        names += ["label", "confidence"]
    if spec.sampling.logprobs is not None:
        names.append("logprobs")
    return tuple(spec.output_prefix + name for name in names)


def _template_columns(recipe: Generate) -> tuple[str, ...]:
    found = tuple(sorted(templates.variables(recipe.template)))
    if recipe.columns and set(recipe.columns) != set(found):
        raise InvalidJob("recipe.columns", f"the template uses {_names(found) or 'no column'}; leave this field out")
    return found


def _check_columns(spec: JobSpec, dataset: datasets.Dataset) -> None:
    field = "recipe.template" if isinstance(spec.recipe, Generate) else "recipe.column"
    with naming(field):
        datasets.check_columns(dataset, spec.recipe.columns)
        if isinstance(spec.recipe, Chat):
            datasets.check_messages(dataset, spec.recipe.column)
        elif not isinstance(spec.recipe, Generate):
            datasets.check_text(dataset, spec.recipe.column)
    kept: Iterable[str] = dataset.schema.names
    if spec.keep_columns is not None:
        with naming("keep_columns"):
            datasets.check_columns(dataset, spec.keep_columns)
        kept = spec.keep_columns
        if len(set(spec.keep_columns)) != len(spec.keep_columns):
            raise InvalidJob("keep_columns", "a column is named twice")
    twice = sorted(set(kept) & set(added_columns(spec)))
    if twice:
        field = "keep_columns" if spec.output_prefix else "output_prefix"
        raise InvalidJob(
            field,
            f"the input has columns that the job would add: {_names(twice)}; give an output_prefix that makes the "
            "added names different, or leave those columns out of keep_columns",
        )


def _output(spec: JobSpec, job_id: str, source: Path, settings: Settings) -> Path:
    if spec.output is None:
        return settings.data_folder / job_id
    with naming("output"):
        output = uris.resolve_output(spec.output, settings.roots)
    if source.is_dir() and output.is_relative_to(source):
        raise InvalidJob("output", f"{output} lies inside the input folder {source}")
    return output


def _names(names: Iterable[str]) -> str:
    return ", ".join(repr(name) for name in names)
