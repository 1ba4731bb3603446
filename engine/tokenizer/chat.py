"""ChatTemplate: a model's Jinja template, compiled once and rendered in a sandbox."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, NoReturn

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from engine.errors import ChatTemplateError, ModelError


class ChatTemplate:
    """Messages -> text, in the environment that templates are written for: transformers' apply_chat_template."""

    def __init__(self, source: str, special_tokens: Mapping[str, str], path: Path) -> None:
        """`special_tokens` are variables such as bos_token. Raises ModelError when the template has a syntax error."""
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols", _Generation]
        )
        environment.filters["tojson"] = _to_json
        environment.globals |= {"raise_exception": _refuse, "strftime_now": _strftime_now, **special_tokens}
        try:
            self._template = environment.from_string(source)
        except jinja2.TemplateSyntaxError as error:
            raise ModelError(path, f"chat template, line {error.lineno}: {error.message}") from error

    def render(self, messages: Sequence[Mapping[str, str]]) -> str:
        """Render up to and including the header of the answer. Raises ChatTemplateError."""
        try:
            return self._template.render(messages=messages, tools=None, documents=None, add_generation_prompt=True)
        except (jinja2.TemplateError, ArithmeticError, LookupError, TypeError, ValueError, AttributeError) as error:
            raise ChatTemplateError(f"the model's chat template refuses the messages: {error}") from error


class _Generation(Extension):
    """{% generation %} … {% endgeneration %} marks a template's answers for training; here it is its content."""

    tags = {"generation"}  # noqa: RUF012 - jinja2 declares it so

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _refuse(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _strftime_now(form: str) -> str:
    return datetime.now().strftime(form)


def _to_json(value: Any, indent: int | None = None) -> str:
    """Plain JSON: jinja2's own filter would escape what HTML forbids."""
    return json.dumps(value, ensure_ascii=False, indent=indent)
