"""The command-line options that describe a job, shared by `run` and `submit`, and the job request they make."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, fields
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer
from pydantic import ValidationError

from api.schemas import JobRequest


class RecipeName(StrEnum):
    SUMMARIZE = "summarize"
    LABEL = "label"
    GENERATE = "generate"
    CHAT = "chat"


class OnLong(StrEnum):
    ERROR = "error"
    TRUNCATE_HEAD = "truncate_head"
    TRUNCATE_TAIL = "truncate_tail"
    TRUNCATE_MIDDLE = "truncate_middle"


class Calibration(StrEnum):
    NONE = "none"
    CONTEXTUAL = "contextual"
    BATCH = "batch"


class OptionError(Exception):
    """An option or argument cannot be what it says; the message names it and what to do."""


@dataclass(frozen=True, slots=True)
class JobOptions:
    """One field per option. None: not given, so the recipe's or the server's default holds."""

    recipe: Annotated[RecipeName, typer.Option(help="What to do with each row.")] = RecipeName.LABEL
    column: Annotated[str | None, typer.Option(help="Input column: text, or messages for chat.")] = None
    labels: Annotated[str | None, typer.Option(help="label: the labels, separated by commas.")] = None
    describe: Annotated[list[str] | None, typer.Option(help="label: LABEL=what it means; repeatable.")] = None
    example: Annotated[list[str] | None, typer.Option(help="label: LABEL=a text that has it; repeatable.")] = None
    calibration: Annotated[Calibration | None, typer.Option(help="label: correction of the label prior.")] = None
    template: Annotated[
        str | None, typer.Option(help="generate: Jinja template over the columns, or @FILE with one.")
    ] = None
    system: Annotated[str | None, typer.Option(help="generate: the system prompt.")] = None
    instruction: Annotated[str | None, typer.Option(help="summarize, label: replaces the recipe's own.")] = None
    max_words: Annotated[int | None, typer.Option(help="summarize: length of a summary.")] = None
    model: Annotated[str | None, typer.Option(help="Name, folder, .gguf file or hub id (org/name).")] = None
    max_tokens: Annotated[int | None, typer.Option(help="Most tokens of one answer.")] = None
    temperature: Annotated[float | None, typer.Option(help="0: greedy.")] = None
    top_p: Annotated[float | None, typer.Option(help="Nucleus sampling.")] = None
    top_k: Annotated[int | None, typer.Option(help="Sample among the k most probable tokens; 0: all.")] = None
    seed: Annotated[int | None, typer.Option(help="Makes sampling repeatable.")] = None
    stop: Annotated[list[str] | None, typer.Option(help="Text that ends an answer; repeatable.")] = None
    keep_columns: Annotated[str | None, typer.Option(help="Input columns to keep, separated by commas.")] = None
    output_prefix: Annotated[str | None, typer.Option(help="Put before the names of added columns.")] = None
    on_long: Annotated[OnLong | None, typer.Option(help="What happens to a row too long for the model.")] = None
    max_rows: Annotated[int | None, typer.Option(help="Take only the first rows.")] = None
    shard_rows: Annotated[int | None, typer.Option(help="Rows of a shard, the unit of retry.")] = None


SAMPLING = ("max_tokens", "temperature", "top_p", "top_k", "seed", "stop")
WHOLE_JOB = ("model", "output_prefix", "on_long", "max_rows", "shard_rows")
# Request field -> the option that sets it, where the names differ.
OPTION_OF = {"recipe.labels": "labels", "recipe.descriptions": "describe", "recipe.examples": "example"}


def with_job_options(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command with a parameter `options` one command-line option per field of JobOptions instead."""
    hints = get_type_hints(JobOptions, include_extras=True)
    own = [p for p in inspect.signature(command, eval_str=True).parameters.values() if p.name != "options"]
    added = [
        inspect.Parameter(f.name, inspect.Parameter.KEYWORD_ONLY, default=f.default, annotation=hints[f.name])
        for f in fields(JobOptions)
    ]

    def wrapped(**values: Any) -> None:
        options = JobOptions(**{f.name: values.pop(f.name) for f in fields(JobOptions)})
        command(**values, options=options)

    parameters = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in own] + added
    wrapped.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]  # typer reads it
    wrapped.__annotations__ = {p.name: p.annotation for p in parameters}
    wrapped.__name__, wrapped.__doc__ = command.__name__, command.__doc__
    return wrapped


def job_request(options: JobOptions, source: str, output: str | None) -> JobRequest:
    """The request that the options describe. Raises OptionError naming the option."""
    recipe = {
        "kind": options.recipe.value,
        "column": options.column,
        "labels": None if options.labels is None else _split(options.labels),
        "descriptions": _pairs("--describe", options.describe, lambda label, text: (label, text), dict),
        "examples": _pairs("--example", options.example, lambda label, text: {"label": label, "text": text}, list),
        "calibration": options.calibration,
        "template": _text(options.template),
        "system": options.system,
        "instruction": options.instruction,
        "max_words": options.max_words,
    }
    job: dict[str, Any] = {
        "input": source,
        "output": output,
        "recipe": _given(recipe),
        "sampling": _given({name: getattr(options, name) for name in SAMPLING}),
        "keep_columns": None if options.keep_columns is None else _split(options.keep_columns),
        **{name: getattr(options, name) for name in WHOLE_JOB},
    }
    try:
        return JobRequest.model_validate(_given(job))
    except ValidationError as error:
        raise OptionError(_explain(error, options.recipe)) from error


def _explain(error: ValidationError, recipe: RecipeName) -> str:
    kinds = {name.value for name in RecipeName}  # pydantic puts the recipe's kind into the path
    lines = []
    for item in error.errors():
        path = ".".join(str(part) for part in item["loc"] if not isinstance(part, int) and part not in kinds)
        option = "--" + OPTION_OF.get(path, path.rpartition(".")[2]).replace("_", "-")
        message = {
            "missing": f"the recipe {recipe} needs it",
            "extra_forbidden": f"the recipe {recipe} has no such option",
        }.get(item["type"], item["msg"])
        lines.append(f"{option}: {message}")
    return "\n".join(lines)


def _given(values: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


def _split(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _pairs(option: str, values: list[str] | None, make: Callable[[str, str], Any], collect: Callable[..., Any]) -> Any:
    if not values:
        return None
    pairs = [value.partition("=") for value in values]
    for value, (label, equals, text) in zip(values, pairs, strict=True):
        if not (label and equals and text):
            raise OptionError(f"{option} {value!r}: write it as LABEL=TEXT")
    return collect(make(label.strip(), text.strip()) for label, _, text in pairs)


def _text(value: str | None) -> str | None:
    if value is None or not value.startswith("@"):
        return value
    try:
        return Path(value[1:]).read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise OptionError(f"--template {value}: cannot be read: {error}") from error
