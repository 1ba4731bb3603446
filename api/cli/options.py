"""The command-line options that describe a job, shared by `run` and `submit`."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, fields
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer


class RecipeName(StrEnum):
    SUMMARIZE = "summarize"
    LABEL = "label"
    GENERATE = "generate"
    CHAT = "chat"
    EXTRACT = "extract"


class OnLong(StrEnum):
    ERROR = "error"
    TRUNCATE_HEAD = "truncate_head"
    TRUNCATE_TAIL = "truncate_tail"
    TRUNCATE_MIDDLE = "truncate_middle"
    MAP_REDUCE = "map_reduce"


class Calibration(StrEnum):
    NONE = "none"
    CONTEXTUAL = "contextual"
    BATCH = "batch"


class OnUnsupported(StrEnum):
    REFUSE = "refuse"
    VALIDATE = "validate"


class Forced(StrEnum):
    VERIFY = "verify"
    COMMIT = "commit"


class OptionError(Exception):
    """An option or argument cannot be what it says; the message names it and what to do."""


@dataclass(frozen=True, slots=True)
class JobOptions:
    """One field per option. None: not given, so the recipe's or the server's default holds."""

    recipe: Annotated[RecipeName, typer.Option(help="What to do with each row.")] = RecipeName.LABEL
    column: Annotated[str | None, typer.Option(help="Input column: text, or messages for chat.")] = None
    schema: Annotated[Path | None, typer.Option(help="extract: file with a JSON Schema; it becomes columns.")] = None
    schema_column: Annotated[
        str | None, typer.Option(help="extract, generate, chat: input column with a JSON Schema per row.")
    ] = None
    labels: Annotated[str | None, typer.Option(help="label: the labels, separated by commas.")] = None
    describe: Annotated[list[str] | None, typer.Option(help="label: LABEL=what it means; repeatable.")] = None
    example: Annotated[list[str] | None, typer.Option(help="label: LABEL=a text that has it; repeatable.")] = None
    calibration: Annotated[Calibration | None, typer.Option(help="label: correction of the label prior.")] = None
    label_probs: Annotated[bool | None, typer.Option("--label-probs", help="label: the probability of each.")] = None
    multi_label: Annotated[bool | None, typer.Option("--multi-label", help="label: all labels that apply.")] = None
    threshold: Annotated[float | None, typer.Option(help="multi-label: probability from which one applies.")] = None
    abstain_below: Annotated[float | None, typer.Option(help="label: no label where the confidence is less.")] = None
    template: Annotated[
        str | None, typer.Option(help="generate: Jinja template over the columns, or @FILE with one.")
    ] = None
    system: Annotated[str | None, typer.Option(help="generate: the system prompt.")] = None
    instruction: Annotated[str | None, typer.Option(help="summarize, label, extract: replaces the recipe's own.")] = (
        None
    )
    max_words: Annotated[int | None, typer.Option(help="summarize: length of a summary.")] = None
    format_schema: Annotated[
        Path | None, typer.Option(help="generate, chat: file with a JSON Schema that answers are held to.")
    ] = None
    format_regex: Annotated[str | None, typer.Option(help="generate, chat: expression of a whole answer.")] = None
    format_choices: Annotated[
        str | None, typer.Option(help="generate, chat: the possible answers, separated by commas.")
    ] = None
    whitespace: Annotated[bool | None, typer.Option("--whitespace", help="Allow whitespace in JSON.")] = None
    on_unsupported: Annotated[
        OnUnsupported | None, typer.Option(help="What happens to a schema that cannot be enforced as a whole.")
    ] = None
    forced: Annotated[Forced | None, typer.Option(help="Whether the model is asked about text it must write.")] = None
    keep_raw: Annotated[bool | None, typer.Option("--keep-raw", help="Keep answers as written, also bad ones.")] = None
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
    reuse: Annotated[
        bool | None, typer.Option("--reuse/--no-reuse", help="Compute equal rows once, and take over earlier answers.")
    ] = None
    reorder: Annotated[
        bool | None, typer.Option("--reorder/--no-reorder", help="Compute rows that begin alike one after the other.")
    ] = None
    priority: Annotated[int | None, typer.Option(help="Jobs with a higher one are taken first; 0 without.")] = None
    deadline_seconds: Annotated[float | None, typer.Option(help="Rows not finished by then expire.")] = None


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
