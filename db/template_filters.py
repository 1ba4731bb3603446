"""Filters that Jinja has too, held to what a row may cost (db.template_work)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from jinja2 import Environment, TemplateError, filters, pass_environment, pass_eval_context
from jinja2.nodes import EvalContext

from db import template_work
from db.template_work import MAX_DIGITS, TooMuch


def bounded_trim(value: Any, chars: str | None = None) -> str:
    template_work.check_set(chars)
    return str(filters.do_trim(value, chars))


def bounded_round(value: float, precision: int = 0, method: str = "common") -> float:
    """10 to the power of the precision is computed."""
    if not -300 <= precision <= 300:
        raise TooMuch(f"a precision of {precision}; it may be from -300 to 300")
    return filters.do_round(value, precision, method)  # type: ignore[arg-type] # an unknown one is an error of the row


def bounded_int(value: Any, default: int = 0, base: int = 10) -> int:
    return filters.do_int(_short(value), default, base)


def bounded_float(value: Any, default: float = 0.0) -> float:
    return filters.do_float(_short(value), default)


def _short(value: Any) -> Any:
    if isinstance(value, (str, bytes)) and len(value) > MAX_DIGITS:
        raise TooMuch(f"a number of more than {MAX_DIGITS} characters")
    return value


@pass_environment
def bounded_sum(
    environment: Environment, iterable: Iterable[Any], attribute: str | int | None = None, start: float = 0
) -> Any:
    """Of numbers: a sum of lists takes the square of their length."""
    if not isinstance(start, (int, float)):
        raise TemplateError("sum adds numbers")
    return filters.sync_do_sum(environment, iterable, attribute, start)


@pass_eval_context
def bounded_tojson(context: EvalContext, value: Any, indent: int | None = None) -> str:
    if indent is not None and not 0 <= indent <= 8:
        raise TooMuch(f"an indent of {indent}; it may be from 0 to 8")
    return str(filters.do_tojson(context, value, indent))


BOUNDED = {
    "float": bounded_float,
    "int": bounded_int,
    "round": bounded_round,
    "sum": bounded_sum,
    "tojson": bounded_tojson,
    "trim": bounded_trim,
}
