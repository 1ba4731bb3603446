"""Templates that would take minutes or gigabytes: refused at submission, or an error of the row, within seconds."""

from __future__ import annotations

import datetime
import time

import pytest
from jinja2 import TemplateError

from db.errors import InvalidJob
from db.templates import renderer, variables

LONG = {
    "s": "a" * 1_000_000, "t": "b" * 1_000_000 + "a", "h": "f" * 2_000_000, "n": 3, "f": 1.5,
    "items": ["x"] * 10, "lists": [["x"]] * 10_000, "d": datetime.datetime(2020, 1, 1),
}  # fmt: skip
SECONDS = 20.0  # of a loaded machine; without the bounds these take minutes, or for ever


@pytest.mark.parametrize(
    ("template", "reason"),
    [
        ("{% for a in s %}" * 25 + "{% endfor %}" * 25, "if and for are nested more than 15 deep"),
        ("{% if s %}" * 120 + "{% endif %}" * 120, "if and for are nested more than 15 deep"),
        ("{% if n==1 %}" + "{% elif n==2 %}" * 5000 + "{% endif %}", "more than 2000 expressions and statements"),
        ("{% set a = 1 %}" * 8000, "more than 2000 expressions and statements"),
        ("{{ s" + "|upper|lower" * 5000 + " }}", "more than 2000 expressions and statements"),
        ("{{ " + "1" * 5000 + " }}", "Exceeds the limit"),
        ("{{ s|upper(x=1,x=2) }}", "keyword argument repeated"),
        ("{% for a in [1] %}{{ s.strip(_loop_vars={}) }}{% endfor %}", "keyword argument repeated"),
    ],
)
def test_too_much_to_compile(template: str, reason: str) -> None:
    started = time.monotonic()
    with pytest.raises(InvalidJob, match=reason) as caught:
        variables(template)
    assert caught.value.field == "recipe.template"
    assert time.monotonic() - started < SECONDS


@pytest.mark.parametrize(
    ("template", "reason"),
    [
        ("{{ s.strip(t) }}", "more than 64 characters to strip"),
        ("{{ s|trim(t) }}", "more than 64 characters to strip"),
        ("{{ 1.5|round(10000000, 'ceil') }}", "a precision of 10000000"),
        ("{{ f|round(n * 3000000, 'ceil') }}", "a precision of 9000000"),
        ("{{ h|int(0, 16) // 7 }}", "a number of more than 4096 characters"),
        ("{{ (h ~ '.5')|float }}", "a number of more than 4096 characters"),
        ("{% for i in range(10000) %}{% if s|upper == t %}{% endif %}{% endfor %}", "more work than a row may"),
        ("{% for i in range(9999) %}" + "{% if n %}{% endif %}" * 600 + "{% endfor %}", "more work than a row may"),
        ("{% for i in range(9999) %}{% set x = s[1:] %}{% endfor %}", "more work than a row may"),
        ("{% for i in range(9999) %}{% if 'q' in s %}{% endif %}{% endfor %}", "more work than a row may"),
        ("{% for i in range(9999) %}{% if s is in(items) %}{% endif %}{% endfor %}", "more work than a row may"),
        ("{% for i in range(9999) %}{% set x = s|sort %}{% endfor %}", "more work than a row may"),
        ("{% for i in range(9999) %}{% set x = s.title() %}{% endfor %}", "more work than a row may"),
        ("{% for i in range(9999) %}{% set x = s|wordcount %}{% endfor %}", "more work than a row may"),
        ("{% for i in range(9999) %}{% set x = lists|tojson %}{% endfor %}", "more work than a row may"),
        ("{{ s.split('a')|length }}", "the result of split has 1000001 items"),
        ("{{ (s|replace('a', '\n')).splitlines()|length }}", "the result of splitlines has 1000001 items"),
        ("{{ d.strftime('%c' * 400000)|length }}", "the format of strftime is longer"),
        ("{{ (items * 1000000)|length }}", r"the result of \* is too large"),
        ("{{ lists|sum(start=[])|length }}", "sum adds numbers"),
        ("{{ items|tojson(indent=100000000) }}", "an indent of 100000000"),
        ("{% for a in s %}{% for b in s %}{% endfor %}{% endfor %}", "loops more than 10000 times"),
        ("{{ (s|replace('a', '&'))|e|length }}", "the result of e is 5000000 characters long"),
        ("{{ '\ud800' }}", "a lone surrogate"),
    ],
)
def test_too_much_for_a_row(template: str, reason: str) -> None:
    variables(template)
    started = time.monotonic()
    with pytest.raises(TemplateError, match=reason):
        renderer(template, 4_000_000)(LONG)
    assert time.monotonic() - started < SECONDS


def test_what_a_long_row_may_cost_is_enough_for_ordinary_work() -> None:
    """A text of a million characters through ten filters, and some thousand short ones one by one."""
    text = "word " * 200_000
    template = (
        "{{ s|trim|upper|lower|replace('word', 'w')|title|capitalize|wordcount }} {% for i in items %}{% if i != 'z' "
        "and i|length > 0 %}{{ i|upper }}{% endif %}{% endfor %}"
    )
    variables(template)
    assert renderer(template, 8 << 20)({"s": text, "items": ["x"] * 5000}) == "200000 " + "X" * 5000


def test_a_row_does_not_use_up_the_next_ones_allowance() -> None:
    render = renderer("{% for i in range(6000) %}{{ i % 2 }}{% endfor %}", 100_000)
    assert len({render({}) for _ in range(3)}) == 1
