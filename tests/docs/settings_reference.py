"""docs/reference/settings.md: every setting, from the class that reads them."""

from __future__ import annotations

import json
import typing
from pathlib import Path
from types import NoneType, UnionType
from typing import Any

from pydantic import AliasChoices
from pydantic.fields import FieldInfo

from db.settings import Settings
from tests.docs.markdown import table

HEAD = """# Settings

Every setting is an environment variable of the processes (API, workers, command line), read once when a process
starts. In a container a file in `/run/secrets` named as the variable, in lower case, does the same. A value that
cannot be is refused at the start, by name. Lists and objects are written as JSON.

"""
GROUPS = {
    "Place and connections": ("home", "database_url", "redis_url", "data_roots", "s3_"),
    "API and access": ("host", "port", "auth", "api_key", "url", "submissions_per_minute", "max_upload_bytes"),
    "Jobs and workers": (),  # whatever no other claims
    "Answers kept for reuse": ("results_",),
    "OpenAI clients and webhooks": ("openai_", "webhook_"),
    "Model and engine": ("model", "engine_"),
    "Logs and traces": ("log_", "otel_"),
}


def render() -> str:
    by_group: dict[str, list[list[str]]] = {name: [] for name in GROUPS}
    for name, field in Settings.model_fields.items():
        by_group[group(name)].append(row(name, field))
    return HEAD + "\n".join(
        f"## {title}\n\n{table(('variable', 'type', 'default', 'meaning'), rows)}"
        for title, rows in by_group.items()
        if rows
    )


def group(name: str) -> str:
    for title, starts in GROUPS.items():
        if any(name == start or (start.endswith("_") and name.startswith(start)) for start in starts):
            return title
    return "Jobs and workers"


def row(name: str, field: FieldInfo) -> list[str]:
    aliases = field.validation_alias
    names = [str(each) for each in aliases.choices] if isinstance(aliases, AliasChoices) else []
    spelt = [each for each in names if each.isupper()] or [f"NIGHTMILL_{name.upper()}"]
    words = [field.description or "", limits(field)]
    return [
        ", ".join(f"`{each}`" for each in spelt),
        kind(field.annotation),
        default(field),
        " ".join(filter(None, words)),
    ]


def kind(annotation: Any) -> str:
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Literal:
        return " or ".join(f"`{value}`" for value in arguments)
    if origin in (UnionType, typing.Union):
        return " or ".join(dict.fromkeys(kind(each) for each in arguments if each is not NoneType))
    if origin is tuple:
        return "list of " + kind(arguments[0])
    if origin is dict:
        return "object"
    return {bool: "`true` or `false`", int: "whole number", float: "number", str: "text", Path: "path"}[annotation]


def default(field: FieldInfo) -> str:
    """A secret's is never shown, whatever it is."""
    if field.repr is False:
        return "empty"
    if field.default_factory is not None:
        return f"`{str(field.get_default(call_default_factory=True)).replace(str(Path.home()), '~')}`"
    value = field.default
    if value is None or value in ("", (), {}):
        return "empty"
    return f"`{value if isinstance(value, str) else json.dumps(value)}`"


def limits(field: FieldInfo) -> str:
    words = {"ge": "at least", "gt": "more than", "le": "at most", "lt": "less than"}
    found = [
        f"{told} {getattr(rule, name)}"
        for rule in field.metadata
        for name, told in words.items()
        if hasattr(rule, name)
    ]
    return f"({', '.join(found)})" if found else ""
