"""The JSON Schema test suite: nothing invalid passes, and what cannot be enforced is refused by name."""

from __future__ import annotations

import json

import pytest

from tests.engine.grammar.languages import canonical, grammars
from tests.engine.grammar.suite import judge


def test_data_is_put_into_canonical_form() -> None:
    schema = json.dumps({"properties": {"b": {}, "a": {"properties": {"z": {}, "y": {}}}}})
    assert (
        canonical(schema, '{"a": {"y": 1.0, "x": "é", "z": 2.5}, "b": [true]}')
        == '{"b": [true], "a": {"z": 2.5, "y": 1, "x": "é"}}'
    )


def test_every_case_of_the_suite() -> None:
    verdicts = judge(grammars())
    assert verdicts.wrong == []
    assert dict(verdicts.accepted) == {True: 340}
    assert dict(verdicts.rejected) == {False: 235, True: 10}
    assert sum(verdicts.refused.values()) == 1257 - 340 - 235 - 10
    keywords = {keyword for names in verdicts.refused for keyword in names.split(", ")}
    assert keywords == {
        "$dynamicAnchor", "$dynamicRef", "$ref", "const", "contains", "dependentRequired", "dependentSchemas", "else",
        "enum", "format", "if", "maxContains", "maxItems", "maxLength", "maxProperties", "minContains", "minItems",
        "minLength", "minProperties", "multipleOf", "not", "oneOf", "patternProperties", "propertyNames", "schema",
        "then", "unevaluatedItems", "unevaluatedProperties", "uniqueItems",
    }  # fmt: skip


@pytest.mark.slow
def test_every_output_that_a_grammar_lets_pass_is_valid() -> None:
    """Random walks through the suite's grammars, checked by jsonschema."""
    from tests.engine.grammar.walks import count_invalid

    invalid, valid = count_invalid(walks=12, seed=1)
    assert invalid == []
    assert valid > 1000
