"""How much work a template may do with one row, and how much each operation is.

Counted, not timed: whether a row is too much must not depend on how busy the machine is. The unit is about what one
small expression costs. Values are weighed with all that they contain, before they are worked on and once they are made.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, ItemsView, Iterable, Iterator, KeysView, Mapping, ValuesView
from typing import Any

from jinja2 import TemplateError, pass_context
from jinja2.runtime import Context

MAX_ITERATIONS = 10_000  # of all loops together
MAX_WORK = 8_000_000  # about a second or two, at the worst mixture found
MAX_ITEMS = 1_000_000  # of a list that a template makes
MAX_INTEGER_BITS = 4096
MAX_DIGITS = 4096  # of a text that becomes a number
CHARS_PER_UNIT = 8
SPENT = "work spent"  # the render variable that holds the Work; with its space no template can name it
# Taken apart into their characters by these; the others go over a text as a whole.
OVER_ITEMS = frozenset({"first", "join", "last", "list", "max", "min", "reverse", "sort", "sum", "unique"})
LINE_ENDS = "\n\r\v\f\x1c\x1d\x1e\x85\u2028\u2029"


class TooMuch(TemplateError):
    """A template worked too long or made a value too large."""


class Work:
    """What is left of one row's allowance."""

    def __init__(self) -> None:
        self.iterations = MAX_ITERATIONS
        self.units = MAX_WORK

    def spend(self, units: int) -> None:
        self.units -= units
        if self.units < 0:
            raise TooMuch("the template takes more work than a row may")

    def iterate(self, units: int) -> None:
        self.iterations -= 1
        if self.iterations < 0:
            raise TooMuch(f"the template loops more than {MAX_ITERATIONS} times")
        self.spend(units)


def of(context: Context) -> Work:
    work: Work = context[SPENT]
    return work


def weight(value: Any) -> int:
    """Units that one pass over a value costs."""
    if isinstance(value, (str, bytes)):
        return 1 + len(value) // CHARS_PER_UNIT
    if isinstance(value, int):
        return 1 + value.bit_length() // 64
    if isinstance(value, (list, tuple, set, frozenset)):
        return 1 + sum(map(weight, value))
    if isinstance(value, Mapping):
        return 1 + sum(weight(key) + weight(item) for key, item in value.items())
    if isinstance(value, (range, KeysView, ValuesView, ItemsView)):
        return 1 + len(value)
    return 1


def metered(name: str, function: Callable[..., Any], max_chars: int) -> Callable[..., Any]:
    """A filter that pays for what it is given and for what it gives, and that compiles to no constant."""
    takes = str(getattr(getattr(function, "jinja_pass_arg", None), "name", ""))

    @pass_context
    def paid(context: Context, value: Any, *args: Any, **kwargs: Any) -> Any:
        work = of(context)
        if name in OVER_ITEMS and isinstance(value, str):
            check_items(len(value), name)
            work.spend(8 * len(value))
        pay(work, value, *args, *kwargs.values())
        first = {"context": context, "eval_context": context.eval_ctx, "environment": context.environment}
        result = function(*([first[takes]] if takes else []), value, *args, **kwargs)
        return received(work, result, name, max_chars)

    return paid


def pay(work: Work, *values: Any) -> None:
    work.spend(sum(map(weight, values)))


def received(work: Work, result: Any, name: str, max_chars: int) -> Any:
    """The result of an operation, no longer than it may be. What comes one by one becomes a list."""
    if isinstance(result, Iterator):
        result = list(itertools.islice(result, MAX_ITEMS + 1))
    if isinstance(result, (list, tuple)):
        check_items(len(result), name)
    if isinstance(result, str):
        check_chars(len(result), name, max_chars)
    pay(work, result)
    return result


def check_items(count: int, what: str) -> None:
    if count > MAX_ITEMS:
        raise TooMuch(f"the result of {what} has {count} items; the limit is {MAX_ITEMS}")


def check_chars(count: int, what: str, limit: int) -> None:
    if count > limit:
        raise TooMuch(f"the result of {what} is {count} characters long; the limit is {limit}")


def check_call(name: str, owner: Any, args: tuple[Any, ...]) -> None:
    """What a method would do must be known beforehand to be little more than one pass."""
    if name in ("strip", "lstrip", "rstrip") and args:
        check_set(args[0])
    if name == "strftime" and args and len(args[0]) > 256:
        raise TooMuch("the format of strftime is longer than 256 characters")
    if isinstance(owner, str):
        if name in ("split", "rsplit") and args and isinstance(args[0], str) and args[0]:
            check_items(owner.count(args[0]) + 1, name)
        elif name in ("split", "rsplit"):
            check_items(len(owner) // 2, name)
        elif name == "splitlines":
            check_items(sum(map(owner.count, LINE_ENDS)) + 1, name)


def check_set(chars: Any) -> None:
    """Characters to strip: each character of the text is looked for among them."""
    if isinstance(chars, str) and len(chars) > 64:
        raise TooMuch("more than 64 characters to strip")


def check_binop(operator: str, left: Any, right: Any, max_chars: int) -> None:
    """Refuses a result before it is made: bits of a number, characters of a text, items of a list."""
    if operator == "%" and isinstance(left, (str, bytes)):
        raise TooMuch("% does not format text in a template")
    if isinstance(left, int) and isinstance(right, int):
        bits = left.bit_length(), right.bit_length()
        size = {"*": sum(bits), "**": bits[0] * max(0, right)}.get(operator, max(bits))
        limit = MAX_INTEGER_BITS
    else:
        sized = [len(side) for side in (left, right) if isinstance(side, (str, bytes, list, tuple))]
        factor = next((side for side in (left, right) if isinstance(side, int)), 1) if operator == "*" else 1
        size = sum(sized) * max(1, factor)
        limit = max_chars if isinstance(left, (str, bytes)) or isinstance(right, (str, bytes)) else MAX_ITEMS
    if size > limit:
        raise TooMuch(f"the result of {operator} is too large")


@pass_context
def counted(context: Context, items: Iterable[Any], units: int) -> Iterator[Any]:
    """The items of a loop whose body has `units` expressions and statements."""
    work = of(context)
    for item in items:
        work.iterate(units)
        yield item


@pass_context
def weigh(context: Context, value: Any) -> Any:
    pay(of(context), value)
    return value
