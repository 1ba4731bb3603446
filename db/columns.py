"""Columns: which ones a job reads and what it asks of them, and which it writes; for api and worker alike."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, assert_never

import pyarrow as pa

from db import datasets
from db.datasets import Dataset
from db.errors import InvalidJob
from db.formats import SchemaOptions
from db.specs import Chat, Extract, Generate, JobSpec, Label, OpenAI, Summarize
from db.typed_columns import typed

ERROR = pa.struct([pa.field("code", pa.string()), pa.field("message", pa.string())])
DEAD_LETTER_ERROR = "nightmill_error"  # beside the input's columns in a dataset of failed rows
TOKEN_COLUMNS = ("prompt_tokens", "cached_tokens", "output_tokens", "truncated_tokens")
CHOICE = pa.struct(
    [
        pa.field("text", pa.large_string()),
        pa.field("finish_reason", pa.string()),
        pa.field("logprobs", pa.large_string()),
    ]
)
PROBABILITY = pa.struct([pa.field("label", pa.string()), pa.field("prob", pa.float64())])


def schema_column(spec: JobSpec) -> str | None:
    """The column that holds a JSON Schema per row, if the job has one."""
    return spec.structure.schema_column if isinstance(spec.structure, SchemaOptions) else None


def read_columns(spec: JobSpec) -> tuple[str, ...]:
    """What the recipe reads of a row, each name once."""
    more = schema_column(spec)
    return tuple(dict.fromkeys((*spec.recipe.columns, *([more] if more else []))))


def input_checks(spec: JobSpec) -> list[tuple[str, Callable[[Dataset], None]]]:
    """What a dataset must have: the field of the job that asks for it, and a check that raises InvalidDataset."""
    recipe = spec.recipe
    checks: list[tuple[str, Callable[[Dataset], None]]]
    match recipe:
        case Generate(columns=columns):
            checks = [("recipe.template", lambda dataset: datasets.check_columns(dataset, columns))]
        case Chat(column=column):
            checks = [("recipe.column", lambda dataset: datasets.check_messages(dataset, column))]
        case Summarize(column=column) | Label(column=column) | Extract(column=column) | OpenAI(column=column):
            checks = [("recipe.column", lambda dataset: datasets.check_text(dataset, column))]
        case _:
            assert_never(recipe)
    schemas = schema_column(spec)
    if schemas is not None:
        field = "recipe.schema_column" if isinstance(recipe, Extract) else "recipe.format.schema_column"
        checks.append((field, lambda dataset: datasets.check_text(dataset, schemas)))
    key = None if spec.only_new is None else spec.only_new.key
    if key is not None:
        checks.append(("only_new.key", lambda dataset: datasets.check_columns(dataset, [key])))
    return [*checks, ("keep_columns", lambda dataset: datasets.check_columns(dataset, spec.keep_columns or ()))]


def kept_columns(spec: JobSpec, source: pa.Schema) -> list[str]:
    """The input columns that the output carries over: all that the job does not leave out.

    Not the error that a dead letter carries, when it is submitted again: it is of the earlier job.
    """
    if spec.keep_columns is not None:
        return list(spec.keep_columns)
    return [name for name in source.names if name != DEAD_LETTER_ERROR]


def output_schema(spec: JobSpec, source: pa.Schema) -> pa.Schema:
    """Kept input columns, unchanged, and then the added ones. Raises InvalidJob where a name would come twice."""
    kept = kept_columns(spec, source)
    if len(set(kept)) != len(kept):
        raise InvalidJob("keep_columns", "a column is named twice")
    added = [field.with_name(spec.output_prefix + field.name) for field in added_fields(spec)]
    twice = sorted(set(kept) & {field.name for field in added})
    if twice:
        raise InvalidJob(
            "keep_columns" if spec.output_prefix else "output_prefix",
            f"the input has columns that the job would add: {_names(twice)}; give an output_prefix that makes the "
            "added names different, or leave those columns out of keep_columns",
        )
    return pa.schema([*(source.field(name) for name in kept), *added])


def added_fields(spec: JobSpec) -> list[pa.Field[Any]]:
    """The columns a job adds to the kept ones, without the job's prefix. Raises InvalidJob for an extract schema."""
    raw = [pa.field("raw_output", pa.large_string())] if spec.structure is not None and spec.structure.keep_raw else []
    logprobs = [pa.field("logprobs", pa.large_string())] if spec.sampling.logprobs is not None else []
    common = [
        pa.field("finish_reason", pa.string()),
        pa.field("error", ERROR),
        *(pa.field(name, pa.int32()) for name in TOKEN_COLUMNS),
    ]
    own = recipe_fields(spec)
    frame = [pa.field("output", pa.large_string()), *raw, *common, *logprobs]
    twice = sorted({field.name for field in own} & {field.name for field in frame})
    if twice:
        reason = f"the properties {_names(twice)} are named like columns that every such job adds; rename them"
        raise InvalidJob("recipe.json_schema", reason)
    return [frame[0], *own, *frame[1:]]


def recipe_fields(spec: JobSpec) -> list[pa.Field[Any]]:
    """The columns that only this kind of job has."""
    recipe = spec.recipe
    match recipe:
        case Summarize():
            return [pa.field("chunks", pa.int32())] if spec.on_long == "map_reduce" else []
        case Generate() | Chat():
            return []
        case Extract(json_schema=schema):
            return [] if schema is None else list(typed(schema).fields)
        case Label():
            return _label_fields(recipe)
        case OpenAI():
            return [pa.field("choices", pa.list_(CHOICE))]
        case _:
            assert_never(recipe)


def _label_fields(recipe: Label) -> list[pa.Field[Any]]:
    probabilities = [pa.field("label_probs", pa.list_(PROBABILITY))] if recipe.label_probs else []
    if recipe.multi_label:
        return [pa.field("labels", pa.list_(pa.string())), *probabilities]
    abstained = [pa.field("abstained", pa.bool_())] if recipe.abstain_below is not None else []
    return [pa.field("label", pa.string()), pa.field("confidence", pa.float64()), *abstained, *probabilities]


def _names(names: Iterable[str]) -> str:
    return ", ".join(repr(name) for name in names)
