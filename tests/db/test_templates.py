"""The template language: what it takes, what it refuses, and its bounds."""

from __future__ import annotations

import pytest
from jinja2 import TemplateError

from db.errors import InvalidJob
from db.templates import renderer, variables

ROW = {"s": "aa", "n": 3, "none": None, "items": ["x", "y"], "d": {"k": "v"}}


def test_variables_are_the_names_taken_from_the_row() -> None:
    template = "{{ a ~ b }}{% for x in c %}{{ x.name }}{{ loop.index }}{% endfor %}{% set q = d|upper %}{{ q }}"
    assert variables(template + "{{ range(3)|join }}") == {"a", "b", "c", "d"}


def test_renders() -> None:
    template = "{{ s }}-{{ n + 1 }}{% for i in items %} {{ i ~ n }}{{ loop.index }}/{{ loop.length }}{% endfor %}"
    assert renderer(template + " {{ d.k|upper }}", 1000)(ROW) == "aa-4 x31/2 y32/2 V"


def test_markup_in_a_value_is_not_a_template() -> None:
    assert renderer("{{ s }}", 1000)({"s": "{{ n }}<b>"}) == "{{ n }}<b>"


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("{{ a", "line 1: unexpected end of template, expected 'end of print statement'."),
        ("\n{% include 'x' %}", "line 2: Include is not part of the template language (expressions, if, for, set)"),
        ("{% macro m() %}{% endmacro %}", "line 1: Macro is not part"),
        ("{% set x %}a{% endset %}", "line 1: AssignBlock is not part"),
        ("{% set x = [s, s] %}", "line 1: lists and dictionaries in a template hold constants only"),
        ("{{ s|center(9) }}", "line 1: no filter 'center'"),
        ("{{ s.format(1) }}", "line 1: format cannot be called"),
        ("{{ lipsum(5) }}", "line 1: lipsum cannot be called"),
        ("{% for a in s recursive %}{% endfor %}", "line 1: a loop cannot be recursive"),
        ("{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}", "nested too deeply"),
    ],
)
def test_refused_at_submission(template: str, message: str) -> None:
    with pytest.raises(InvalidJob) as caught:
        variables(template)
    assert caught.value.field == "recipe.template"
    assert caught.value.reason.startswith(message)


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("{{ 'x' * 10**9 }}", "the result of * is too large"),
        ("{% set x = 'aaaaaaaaaa' %}" + "{% set x = x ~ x %}" * 40, "the result of join is 10240 characters long"),
        ("{% set x = 'aaaaaaaaaa' %}" + "{% set x = x + x %}" * 40, "the result of + is too large"),
        ("{% set x = 2 %}" + "{% set x = x * x %}" * 40, "the result of * is too large"),
        ("{{ 10 ** 5000 }}", "the result of ** is too large"),
        ("{{ '%1000000000d' % 5 }}", "% does not format text"),
        ("{{ (s * 1000)|replace('a', s * 1000) }}", "the result of replace is 4000000 characters long"),
        ("{{ range(10**9) }}", "range(1000000000,) has more than 10000 numbers"),
        (
            "{% for i in range(200) %}{% for j in range(200) %}{% endfor %}{% endfor %}",
            "the template loops more than 10000",
        ),
        ("{% for i in range(9) %}{{ s * 1000 }}{% endfor %}", "the text is longer than 10000 characters"),
        ("{{ none }}", "the template prints a null; write {{ column or '' }}"),
        ("{{ missing }}", "'missing' is undefined"),
        ("{{ n / 0 }}", "ZeroDivisionError: division by zero"),
        ("{{ n + s }}", "TypeError"),
        ("{{ ''.__class__ }}", "access to attribute '__class__' of 'str' object is unsafe."),
        ("{{ n.bit_length }}", "access to attribute 'bit_length' of 'int' object is unsafe."),
    ],
)
def test_bounded_while_rendering(template: str, message: str) -> None:
    variables(template)
    with pytest.raises(TemplateError) as caught:
        renderer(template, 10_000)(ROW)
    assert str(caught.value).startswith(message)


def test_the_loop_budget_is_per_row() -> None:
    render = renderer("{% for i in range(9000) %}{% endfor %}ok", 100)
    assert [render({}), render({})] == ["ok", "ok"]
