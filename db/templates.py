"""Templates of the `generate` recipe: a small, bounded part of Jinja, checked at submission and rendered by the worker.

A template is written by a client and rendered once per row, so it must neither reach Python's insides nor run or grow
without end. The language is therefore expressions, `if`, `for` and `set`; strings have the methods in METHODS, values
the filters in FILTERS; loops share a budget per row; and no value may grow past a limit, whatever makes it.
Jinja's own sandbox stops attribute tricks, but not `'x' * 10**9` (jinja.palletsprojects.com/sandbox).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from jinja2 import StrictUndefined, Template, TemplateError, TemplateSyntaxError, meta, nodes, pass_context
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

from db.errors import InvalidJob

MAX_ITERATIONS = 10_000  # of all loops together, per row
MAX_INTEGER_BITS = 4096
COUNTED = "counted items"  # the filter put on every loop, likewise out of reach
BUDGET = "loop budget"  # the render variable that counts iterations; with its space no template can name it

STATEMENTS = (nodes.Template, nodes.Output, nodes.TemplateData, nodes.For, nodes.If, nodes.Assign)
PARTS = (nodes.Expr, nodes.Operand, nodes.Keyword, nodes.Pair)
REFUSED = (nodes.MarkSafe, nodes.NSRef, nodes.Call)  # calls are let in one by one, see _check_call
FILTERS = """
    abs capitalize count default d escape e first float int items join last length lower max min replace reverse
    round sort string sum title tojson trim truncate unique upper wordcount
"""
METHODS = """
    strip lstrip rstrip lower upper title capitalize split rsplit splitlines startswith endswith find count
    get keys values items isoformat strftime
"""
KNOWN_FILTERS, KNOWN_METHODS = frozenset(FILTERS.split()), frozenset(METHODS.split())


class TooMuch(TemplateError):
    """A template looped too often or made a value too large."""


class _Bounded(NodeTransformer):
    """Refuses what the language lacks and puts a bound on each loop and each `~`."""

    def generic_visit(self, node: nodes.Node, *args: Any, **kwargs: Any) -> nodes.Node:
        self._check(node)
        return super().generic_visit(node, *args, **kwargs)

    def _check(self, node: nodes.Node) -> None:
        if isinstance(node, nodes.Filter) and node.name not in KNOWN_FILTERS:
            refuse(node, f"no filter {node.name!r}; there are {', '.join(sorted(KNOWN_FILTERS))}")
        if isinstance(node, nodes.Call):
            _check_call(node)
        elif isinstance(node, REFUSED) or not isinstance(node, (*STATEMENTS, *PARTS)):
            refuse(node, f"{type(node).__name__} is not part of the template language (expressions, if, for, set)")
        if isinstance(node, nodes.For) and node.recursive:
            refuse(node, "a loop cannot be recursive")
        # Without this, `set x = [x, x]` repeated doubles the size of what `x` prints.
        if isinstance(node, (nodes.List, nodes.Tuple, nodes.Dict)) and getattr(node, "ctx", "load") == "load":
            _check_constant(node)

    def visit_For(self, node: nodes.For) -> nodes.Node:  # noqa: N802 (Jinja's visitor names methods after node types)
        self.generic_visit(node)
        node.iter = nodes.Filter(node.iter, COUNTED, [], [], None, None, lineno=node.lineno)
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:  # noqa: N802 (as above)
        self.generic_visit(node)
        return nodes.Filter(nodes.List(node.nodes), "join", [], [], None, None, lineno=node.lineno)


def refuse(node: nodes.Node, reason: str) -> None:
    raise TemplateSyntaxError(reason, node.lineno)


def _check_call(node: nodes.Call) -> None:
    target = node.node
    known = isinstance(target, nodes.Getattr) and target.attr in KNOWN_METHODS
    if not (known or (isinstance(target, nodes.Name) and target.name == "range")):
        name = target.attr if isinstance(target, nodes.Getattr) else getattr(target, "name", "an expression")
        refuse(node, f"{name} cannot be called; there are range and the methods {', '.join(sorted(KNOWN_METHODS))}")


def _check_constant(node: nodes.Node) -> None:
    for name in node.find_all(nodes.Name):
        refuse(name, "lists and dictionaries in a template hold constants only")


class TemplateEnvironment(ImmutableSandboxedEnvironment):
    """The environment of both sides. `max_chars` bounds every string a template makes."""

    intercepted_binops = frozenset(["+", "*", "**", "%"])

    def __init__(self, max_chars: int) -> None:
        super().__init__(undefined=StrictUndefined, autoescape=False, finalize=self._printable)
        self.max_chars = max_chars
        self.globals = {"range": _range}
        self.filters = {name: self.filters[name] for name in KNOWN_FILTERS}
        self.filters |= {"join": self._join, "replace": self._replace, COUNTED: _counted}

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        tree: nodes.Template = _Bounded().visit(super()._parse(source, name, filename))
        return tree

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        return super().is_safe_attribute(obj, attr, value) and (not callable(value) or attr in KNOWN_METHODS)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        size = _size_of(operator, left, right)
        if operator == "%" and isinstance(left, (str, bytes)):
            raise TooMuch("% does not format text in a template")
        if size > (MAX_INTEGER_BITS if isinstance(left, int) and isinstance(right, int) else self.max_chars):
            raise TooMuch(f"the result of {operator} is too large")
        return super().call_binop(context, operator, left, right)

    def _printable(self, value: Any) -> Any:
        """A null would print as the word None, and the model would read it."""
        if value is None:
            raise TemplateError("the template prints a null; write {{ column or '' }} where that is meant")
        return value

    def _join(self, value: Iterable[Any], d: str = "", attribute: str | int | None = None) -> str:
        items = [str(self._printable(v if attribute is None else self.getitem(v, attribute))) for v in value]
        self._bound(sum(map(len, items)) + len(d) * max(0, len(items) - 1), "join")
        return d.join(items)

    def _replace(self, text: Any, old: str, new: str) -> str:
        text = str(text)
        self._bound(len(text) + text.count(old) * max(0, len(new) - len(old)), "replace")
        return str(text.replace(old, new))

    def _bound(self, num_chars: int, what: str) -> None:
        if num_chars > self.max_chars:
            raise TooMuch(f"the result of {what} is {num_chars} characters long; the limit is {self.max_chars}")


def _size_of(operator: str, left: Any, right: Any) -> int:
    """The size of a result before it is made: bits of a number, characters of a text, items of a list."""
    if isinstance(left, int) and isinstance(right, int):
        bits = left.bit_length()
        return {"*": bits + right.bit_length(), "**": bits * max(0, right)}.get(operator, 0)
    sized = [len(side) for side in (left, right) if hasattr(side, "__len__")]
    factor = next((side for side in (left, right) if isinstance(side, int)), 1) if operator == "*" else 1
    return sum(sized) * max(1, factor)


def _range(*bounds: int) -> range:
    numbers = range(*bounds)
    if len(numbers) > MAX_ITERATIONS:
        raise TooMuch(f"range{bounds} has more than {MAX_ITERATIONS} numbers")
    return numbers


@pass_context
def _counted(context: Context, items: Iterable[Any]) -> Iterator[Any]:
    budget: list[int] = context[BUDGET]
    for item in items:
        budget[0] -= 1
        if budget[0] < 0:
            raise TooMuch(f"the template loops more than {MAX_ITERATIONS} times")
        yield item


def variables(template: str) -> frozenset[str]:
    """The names a template takes from the row. Raises InvalidJob for a template that does not compile."""
    environment = TemplateEnvironment(max_chars=len(template))
    try:
        tree = environment.parse(template)
        environment.from_string(template)
    except TemplateSyntaxError as error:
        raise InvalidJob("recipe.template", f"line {error.lineno}: {error.message}") from error
    except RecursionError as error:
        raise InvalidJob("recipe.template", "nested too deeply") from error
    return frozenset(meta.find_undeclared_variables(tree)) - {"range"}


def renderer(template: str, max_chars: int) -> Callable[[Mapping[str, object]], str]:
    """A function from a row to the text of at most `max_chars` characters; it raises TemplateError and only that."""
    environment = TemplateEnvironment(max_chars)
    compiled: Template = environment.from_string(template)
    compiled.globals = environment.globals  # in place of a chain of mappings, which every row would walk through

    def render(row: Mapping[str, object]) -> str:
        pieces, num_chars = [], 0
        try:
            # What `generate` does, without copying the globals into a new mapping twice for each row.
            values = {**environment.globals, **row, BUDGET: [MAX_ITERATIONS]}
            for piece in compiled.root_render_func(compiled.new_context(values, shared=True)):
                num_chars += len(piece)
                if num_chars > max_chars:
                    raise TooMuch(f"the text is longer than {max_chars} characters")
                pieces.append(piece)
        except TemplateError:
            raise
        except (TypeError, ValueError, ArithmeticError, LookupError, AttributeError, RecursionError) as error:
            raise TemplateError(f"{type(error).__name__}: {error}") from error
        return "".join(pieces)

    return render
