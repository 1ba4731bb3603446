"""Templates of the `generate` recipe: a small, bounded part of Jinja, checked at submission and rendered by the worker.

A template is written by a client and rendered once per row, so it must neither reach Python's insides nor run or grow
without end. The language is therefore expressions, `if`, `for` and `set`; strings have the methods in METHODS, values
the filters in FILTERS; all operations share an allowance per row (db.template_work); and no value may grow past a
limit, whatever makes it. Jinja's own sandbox stops attribute tricks, but not `'x' * 10**9`
(jinja.palletsprojects.com/sandbox).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from typing import Any

from jinja2 import (
    StrictUndefined,
    Template,
    TemplateError,
    TemplateSyntaxError,
    meta,
    nodes,
)
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

from db import template_filters, template_work
from db.errors import InvalidJob
from db.template_work import MAX_ITERATIONS, SPENT, TooMuch, Work

MAX_NODES = 2000  # of a template: compiling takes longer than in proportion
MAX_NESTING = 15  # of if and for; Python's own limit is 20 for some of what they become
# Filters put around loops and operands. With their spaces no template can name them.
COUNTED, WEIGHED = "counted items", "weighed operand"

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
LONE_SURROGATE = re.compile("[\ud800-\udfff]")
KNOWN_FILTERS, KNOWN_METHODS = frozenset(FILTERS.split()), frozenset(METHODS.split())


class _Bounded(NodeTransformer):
    """Refuses what the language lacks, and makes every loop, `~`, comparison, test and slice pay for what it does."""

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
        size = sum(1 for _ in node.find_all(nodes.Node))
        self.generic_visit(node)
        node.iter = nodes.Filter(node.iter, COUNTED, [nodes.Const(size)], [], None, None, lineno=node.lineno)
        return node

    def visit_Compare(self, node: nodes.Compare) -> nodes.Node:  # noqa: N802 (as above)
        self.generic_visit(node)
        node.expr = _weighed(node.expr)
        for operand in node.ops:
            operand.expr = _weighed(operand.expr)
        return node

    def visit_Test(self, node: nodes.Test) -> nodes.Node:  # noqa: N802 (as above)
        self.generic_visit(node)
        node.node, node.args = _weighed(node.node), [_weighed(arg) for arg in node.args]
        return node

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Node:  # noqa: N802 (as above)
        self.generic_visit(node)
        if isinstance(node.arg, nodes.Slice):
            node.node = _weighed(node.node)
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:  # noqa: N802 (as above)
        self.generic_visit(node)
        return nodes.Filter(nodes.List(node.nodes), "join", [], [], None, None, lineno=node.lineno)


def _weighed(node: nodes.Expr) -> nodes.Expr:
    return nodes.Filter(node, WEIGHED, [], [], None, None, lineno=node.lineno)


def _check_size(tree: nodes.Template) -> None:
    """Before anything else looks at it: a small enough tree, nested shallowly enough for the compiler."""
    count = 0
    level: list[tuple[nodes.Node, int]] = [(tree, 0)]
    while level:
        node, depth = level.pop()
        count += 1
        depth += isinstance(node, (nodes.For, nodes.If))
        if count > MAX_NODES:
            refuse(node, f"more than {MAX_NODES} expressions and statements")
        if depth > MAX_NESTING:
            refuse(node, f"if and for are nested more than {MAX_NESTING} deep")
        level += [(child, depth) for child in node.iter_child_nodes()]


def refuse(node: nodes.Node, reason: str) -> None:
    raise TemplateSyntaxError(reason, node.lineno or 1)  # what `autoescape` becomes has no line


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

    intercepted_binops = frozenset(["+", "-", "*", "/", "//", "**", "%"])

    def __init__(self, max_chars: int) -> None:
        super().__init__(undefined=StrictUndefined, autoescape=False, finalize=self._printable)
        self.max_chars = max_chars
        self.globals = {"range": _range}
        known = {name: self.filters[name] for name in KNOWN_FILTERS}
        known |= {"join": self._join, "replace": self._replace, **template_filters.BOUNDED}
        self.filters = {name: template_work.metered(name, known[name], max_chars) for name in known}
        self.filters |= {COUNTED: template_work.counted, WEIGHED: template_work.weigh}

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        tree = super()._parse(source, name, filename)
        _check_size(tree)
        bounded: nodes.Template = _Bounded().visit(tree)
        return bounded

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        return super().is_safe_attribute(obj, attr, value) and (not callable(value) or attr in KNOWN_METHODS)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        template_work.check_binop(operator, left, right, self.max_chars)
        work = template_work.of(context)
        template_work.pay(work, left, right)
        result = super().call_binop(context, operator, left, right)
        template_work.pay(work, result)
        return result

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805 - as Jinja has it
        owner, name = getattr(__obj, "__self__", None), getattr(__obj, "__name__", "range")
        given = (*args, *(value for key, value in kwargs.items() if not key.startswith("_")))  # Jinja's own begin so
        template_work.check_call(name, owner, given)
        work = template_work.of(__context)
        template_work.pay(work, owner, *given)
        return template_work.received(work, super().call(__context, __obj, *args, **kwargs), name, __self.max_chars)

    def _printable(self, value: Any) -> Any:
        """A null would print as the word None, and the model would read it."""
        if value is None:
            raise TemplateError("the template prints a null; write {{ column or '' }} where that is meant")
        return value

    def _join(self, value: Iterable[Any], d: str = "", attribute: str | int | None = None) -> str:
        items = [str(self._printable(v if attribute is None else self.getitem(v, attribute))) for v in value]
        num_chars = sum(map(len, items)) + len(d) * max(0, len(items) - 1)
        template_work.check_chars(num_chars, "join", self.max_chars)
        return d.join(items)

    def _replace(self, text: Any, old: str, new: str) -> str:
        text = str(text)
        num_chars = len(text) + text.count(old) * max(0, len(new) - len(old))
        template_work.check_chars(num_chars, "replace", self.max_chars)
        return str(text.replace(old, new))


def _range(*bounds: int) -> range:
    numbers = range(*bounds)
    if len(numbers) > MAX_ITERATIONS:
        raise TooMuch(f"range{bounds} has more than {MAX_ITERATIONS} numbers")
    return numbers


# The jobs of a night have the same few, and an environment takes a sixth of a submission's time.
@lru_cache(maxsize=128)
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
    except (SyntaxError, ValueError, OverflowError) as error:  # of Python's compiler, to which Jinja leaves some
        raise InvalidJob("recipe.template", str(error)[:200]) from error
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
            values = {**environment.globals, **row, SPENT: Work()}
            for piece in compiled.root_render_func(compiled.new_context(values, shared=True)):
                num_chars += len(piece)
                if num_chars > max_chars:
                    raise TooMuch(f"the text is longer than {max_chars} characters")
                pieces.append(piece)
        except TemplateError:
            raise
        except (TypeError, ValueError, ArithmeticError, LookupError, AttributeError, RecursionError) as error:
            raise TemplateError(f"{type(error).__name__}: {error}") from error
        text = "".join(pieces)
        if LONE_SURROGATE.search(text):
            raise TemplateError("the text contains a lone surrogate, which is no character")
        return text

    return render
