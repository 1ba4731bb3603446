"""From command-line options to the request for a job."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from api.cli.options import JobOptions, OptionError, RecipeName
from api.field_paths import field_path
from api.schemas import JobRequest

SAMPLING = ("max_tokens", "temperature", "top_p", "top_k", "seed", "stop")
LABEL = ("calibration", "label_probs", "multi_label", "threshold", "abstain_below")
FORMAT = ("whitespace", "on_unsupported", "forced", "keep_raw")
WHOLE_JOB = (
    "model", "output_prefix", "on_long", "max_rows", "shard_rows", "reuse", "reorder", "priority", "deadline_seconds",
)  # fmt: skip
# Request field -> the option that sets it, where the names differ.
OPTION_OF = {
    "recipe.json_schema": "--schema",
    "recipe.descriptions": "--describe",
    "recipe.examples": "--example",
    "recipe.format.json_schema": "--format-schema",
    "recipe.format.pattern": "--format-regex",
    "recipe.format.choices": "--format-choices",
}


def job_request(options: JobOptions, source: str, output: str | None) -> JobRequest:
    """The request that the options describe. Raises OptionError naming the option."""
    recipe = {
        "kind": options.recipe.value,
        **_structure(options),
        "column": options.column,
        "labels": None if options.labels is None else _split(options.labels),
        "descriptions": _pairs("--describe", options.describe, lambda label, text: (label, text), dict),
        "examples": _pairs("--example", options.example, lambda label, text: {"label": label, "text": text}, list),
        **{name: getattr(options, name) for name in LABEL},
        "template": _template(options.template),
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


def _structure(options: JobOptions) -> dict[str, Any]:
    """What answers are held to: fields of the recipe extract itself, `format` of any other."""
    more = _given({name: getattr(options, name) for name in FORMAT})
    kinds = {
        "--format-schema": options.format_schema and {"json_schema": _schema("--format-schema", options.format_schema)},
        "--format-regex": options.format_regex and {"type": "regex", "pattern": options.format_regex},
        "--format-choices": options.format_choices and {"type": "choice", "choices": _split(options.format_choices)},
        "--schema-column": options.schema_column and {"schema_column": options.schema_column},
    }
    given = {option: kind for option, kind in kinds.items() if kind}
    if options.recipe is RecipeName.EXTRACT:
        own = {"json_schema": options.schema and _schema("--schema", options.schema)}
        wrong = sorted(given.keys() - {"--schema-column"})
        if wrong:
            raise OptionError(f"{wrong[0]}: the recipe extract has no such option; its schema is --schema")
        if options.schema is None and not given:
            raise OptionError("--schema: the recipe extract needs it, or --schema-column")
        return {**own, **given.get("--schema-column", {}), **more}
    if options.schema is not None:
        raise OptionError(f"--schema: the recipe {options.recipe} has no such option; see --format-schema")
    if len(given) > 1:
        raise OptionError(f"{', '.join(sorted(given))}: give one of them")
    if more and not given:
        raise OptionError(f"--{next(iter(more)).replace('_', '-')}: means nothing without a format")
    return {"format": {"type": "json_schema", **kind, **more}} if (kind := next(iter(given.values()), None)) else {}


def _explain(error: ValidationError, recipe: RecipeName) -> str:
    lines = []
    for item in error.errors():
        # An option stands for a whole list, so the places in it go.
        path = ".".join(part for part in field_path(item["loc"]).split(".") if not part.isdecimal())
        option = OPTION_OF.get(path, "--" + path.rpartition(".")[2].replace("_", "-"))
        message = {
            "missing": f"the recipe {recipe} needs it",
            "extra_forbidden": f"the recipe {recipe} has no such option",
        }.get(item["type"], item["msg"].removeprefix("Value error, "))
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


def _template(value: str | None) -> str | None:
    return value if value is None or not value.startswith("@") else _read("--template", Path(value[1:]), value)


def _schema(option: str, path: Path) -> Any:
    try:
        return json.loads(_read(option, path, str(path)))
    except (ValueError, RecursionError) as error:
        raise OptionError(f"{option} {path}: not JSON: {error}") from error


def _read(option: str, path: Path, shown: str) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise OptionError(f"{option} {shown}: cannot be read: {error}") from error
