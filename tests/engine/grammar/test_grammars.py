"""Grammars: what formats allow, force and refuse."""

from __future__ import annotations

import threading
from collections import OrderedDict

import pytest
from llguidance import LLMatcher

from engine import Format, UnsupportedFormat
from engine.grammar import Grammars
from tests.engine.grammar.languages import (
    END,
    RECORD,
    allowed,
    bits,
    encode,
    filled,
    grammars,
    matches,
    text_of,
    vocab_size,
)

INTEGER = {"type": "integer"}


@pytest.fixture(scope="module")
def backend() -> Grammars:
    return grammars()


@pytest.mark.parametrize(
    ("format", "inside", "outside"),
    [
        (Format.schema({"type": "array", "items": INTEGER}), ["[]", "[1, -2]"], ["[1,2]", '["a"]', "[1"]),
        (Format.schema({"type": "array", "items": INTEGER}, whitespace=True), ["[1, 2]", "[1,\n2]"], ["[1.5]"]),
        (Format.schema(True), ["1", '"a"', "null"], ["nil", ""]),
        (Format("json_object"), ['{"a": [1, {"b": null}]}', "{}"], ["[]", '{"a":1}']),
        (Format("regex", "[a-c]+[0-9]{2}"), ["a12", "abc99"], ["a1", "d12", "a123"]),
        (Format.choice(["red", "reddish", "light (blue)"]), ["red", "reddish", "light (blue)"], ["re", "blue"]),
        (Format("lark", 'start: A+ "!"\nA: /x|y/'), ["x!", "xyx!"], ["!", "x"]),
        (Format.schema({"const": "<|im_end|>"}), ['"<|im_end|>"'], ['""']),
        (Format.schema({"type": "string", "maxLength": 2}), ['"ab"', '"ñß"', '"\\n\\n"'], ['"abc"', '"\\u0041"']),
    ],
    ids=lambda value: value.kind if isinstance(value, Format) else "",
)
def test_whole_texts_match_or_not(backend: Grammars, format: Format, inside: list[str], outside: list[str]) -> None:
    assert [text for text in inside if not matches(backend, format, text)] == []
    assert [text for text in outside if matches(backend, format, text)] == []


@pytest.mark.parametrize(
    ("schema", "keyword"),
    [
        ({"type": "array", "uniqueItems": True}, "uniqueItems"),
        ({"properties": {"a": {"not": INTEGER}}}, "not"),
        ({"items": {"contains": INTEGER}}, "contains"),
        ({"if": INTEGER, "then": {"minimum": 1}}, "if, then"),
        ({"dependentRequired": {"a": ["b"]}}, "dependentRequired"),
        ({"propertyNames": {"maxLength": 3}}, "propertyNames"),
        ({"oneOf": [INTEGER, {"type": "number"}]}, "oneOf"),
        ({"format": "iri"}, "format"),
        ({"$ref": "https://example.com/schema.json"}, "$ref"),
        ({"$ref": "#/$defs/missing"}, "$ref"),
        ({"pattern": "(?=a)"}, "pattern"),
        ({"pattern": "(a"}, "pattern"),
        ({"patternProperties": {"a*": INTEGER, "aaa*": {"maximum": 20}}}, "patternProperties"),
        ({"type": "integer", "minimum": 5, "maximum": 4}, "minimum"),
        ({"type": "string", "minLength": 5, "maxLength": 3}, "minLength"),
        ({"maxItems": 2.0}, "maxItems"),
        ({"properties": {"a": False}, "required": ["a"], "type": "object"}, "required"),
        ({"type": "whole"}, "type"),
        ({"enum": 3}, "enum"),
        ({"enum": []}, "schema"),
        (False, "schema"),
        # What the library would let pass without a word:
        ({"minProperties": 2}, "minProperties"),
        ({"properties": {"a": {}}, "maxProperties": 2}, "minProperties, maxProperties"),
        ({"anyOf": [INTEGER, {"minProperties": 3, "required": ["a"]}]}, "minProperties"),
        ({"const": "nul\0"}, "const"),
        ({"enum": [1, {"a\x7f": 2}]}, "enum"),
        ({"properties": {"\1": {}}}, "properties"),
        ({"pattern": "^a\\x00b$"}, "pattern"),
        ({"patternProperties": {"\\u0007": {}}}, "patternProperties"),
    ],
)
def test_keywords_that_cannot_be_enforced_are_named(backend: Grammars, schema: dict[str, object], keyword: str) -> None:
    with pytest.raises(UnsupportedFormat) as caught:
        backend.check(Format.schema(schema))
    assert (caught.value.kind, caught.value.keyword) == ("json_schema", keyword)


@pytest.mark.parametrize(
    "format",
    [
        Format("json_schema", "{bad"),
        Format("json_schema", "[]"),
        Format("regex", "(a"),
        Format("lark", "start: (("),
        Format("lark", "begin: A"),
        Format.choice([]),
        Format.choice(["a", ""]),
        Format("choice", "{}"),
        Format("choice", "a"),
    ],
)
def test_what_is_not_sound_is_refused(backend: Grammars, format: Format) -> None:
    with pytest.raises(UnsupportedFormat) as caught:
        backend.start(format)
    assert caught.value.kind == format.kind
    assert caught.value.code == "unsupported_format"


def test_a_minimum_of_names_is_enforced_where_a_name_given_twice_cannot_meet_it(backend: Grammars) -> None:
    format = Format.schema({"minProperties": 3, "required": ["a", "b"]})
    assert matches(backend, format, '{"a": 1, "b": 2, "c": 3}')
    assert not matches(backend, format, '{"a": 1, "b": 2}')


def test_a_schema_cannot_set_the_librarys_options(backend: Grammars) -> None:
    unique = {"type": "array", "items": INTEGER, "uniqueItems": True}
    with pytest.raises(UnsupportedFormat):
        backend.check(Format.schema(unique | {"x-guidance": {"lenient": True}}))
    nested = {"properties": {"a": unique | {"x-guidance": {"lenient": True}}}}
    with pytest.raises(UnsupportedFormat):
        backend.check(Format.schema(nested))


def test_lenient_formats_leave_out_what_cannot_be_enforced(backend: Grammars) -> None:
    format = Format.schema({"type": "array", "items": INTEGER, "uniqueItems": True}, lenient=True)
    assert matches(backend, format, "[1, 1]")
    assert not matches(backend, format, '["a"]')


def test_an_escaped_name_cannot_pass_for_another(backend: Grammars) -> None:
    format = Format.schema({"properties": {"a": INTEGER}, "additionalProperties": {"type": "string"}})
    assert not matches(backend, format, '{"\\u0061": "x"}')
    assert not matches(backend, format, '{"a": 1, "a": "x"}')
    assert matches(backend, format, '{"a": 1, "b": "x"}')


def test_masks_are_exactly_the_tokens_that_are_accepted(backend: Grammars) -> None:
    format = Format.schema(RECORD)
    grammar = backend.start(format)
    for token in encode('{"name": "a b", "kind": "font", "size": 12, "tags": ["old"]}'):
        mask = allowed(backend, grammar)
        for other in range(0, vocab_size(), 7):
            fits = grammar.accept([other]) if other != END else 0
            grammar.rollback(fits)
            assert (other in mask) == bool(fits)
        assert token in mask
        assert grammar.accept([token]) == 1
    assert grammar.finished


def test_masks_of_a_draft_are_those_of_its_beginnings(backend: Grammars) -> None:
    draft = encode('{"name": "x", "kind": "lib')
    together = filled(backend, backend.start(Format.schema(RECORD)), draft)
    grammar = backend.start(Format.schema(RECORD))
    for place in range(len(draft) + 1):
        assert bits(together[place]) == sorted(allowed(backend, grammar))
        grammar.accept(draft[place : place + 1])


def test_rolling_back_leads_to_the_same_masks(backend: Grammars) -> None:
    grammar = backend.start(Format.schema(RECORD))
    tokens = encode('{"name": "x", "kind": "library", "size": 1, "tags": []}')
    masks = []
    for token in tokens:
        masks.append(allowed(backend, grammar))
        grammar.accept([token])
    assert grammar.finished
    for token, mask in zip(reversed(tokens), reversed(masks), strict=True):
        grammar.rollback(1)
        assert allowed(backend, grammar) == mask
        assert token in mask
        assert not grammar.finished


def test_tokens_that_do_not_fit_are_counted_out(backend: Grammars) -> None:
    grammar = backend.start(Format.schema(INTEGER))
    digits, letter = encode("12"), encode("a")
    assert grammar.accept([*digits, *letter]) == len(digits)
    assert grammar.error == ""
    assert grammar.accept(digits) == len(digits)


def test_forced_tokens_are_canonical_and_accepted(backend: Grammars) -> None:
    grammar = backend.start(Format.schema(RECORD))
    assert grammar.forced_text() == b'{"name": "'
    forced = grammar.forced()
    assert b'{"name": "'.startswith(text_of(forced).encode())
    assert encode('{"name": "')[: len(forced)] == forced
    assert grammar.accept(forced) == len(forced)


def test_compiled_formats_are_kept_within_a_bound() -> None:
    backend = grammars(cached=3)
    formats = [Format.choice([str(number)]) for number in range(5)]
    for format in formats:
        backend.check(format)
    assert backend.num_compiled == 3
    backend.check(formats[2])  # used last, so the next one drops formats[3]
    backend.check(formats[0])
    assert list(backend._compiled) == [formats[4], formats[2], formats[0]]


def test_a_dropped_format_goes_on_where_it_is_used() -> None:
    backend = grammars(cached=1)
    grammar = backend.start(Format.choice(["abc"]))
    backend.check(Format.choice(["x"]))
    assert grammar.accept(encode("abc")) == len(encode("abc"))
    assert grammar.finished


def test_another_thread_may_drop_what_this_one_found() -> None:
    """A worker checks one job's format while the engine starts outputs of another."""
    backend = grammars(cached=1)
    here, other = Format("regex", "a"), Format("regex", "b")
    backend.check(here)
    threads: list[threading.Thread] = []

    class Interrupted(OrderedDict[Format, LLMatcher]):
        """Lets another thread compile between a look-up and what follows from it."""

        def get(self, format: Format, default: LLMatcher | None = None) -> LLMatcher | None:
            found = super().get(format, default)
            if not threads:
                threads.append(threading.Thread(target=backend.check, args=(other,)))
                threads[0].start()
                threads[0].join(0.5)
            return found

    backend._compiled = Interrupted(backend._compiled)
    backend.check(here)
    threads[0].join()
    assert list(backend._compiled) == [other]
