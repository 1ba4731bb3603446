"""From a Format to the grammar library's own language, and from its complaints to the keyword that they are about."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping

from llguidance import LLMatcher

from engine.errors import UnsupportedFormat
from engine.format import Format, FormatKind

# One spelling for every string: with \u, a property's name could be spelled so that it passes for another one.
ESCAPES = '"\\bfnrt'
UNSPELLABLE = re.compile(r"[\x00-\x07\x0b\x0e-\x1f\x7f]")  # characters that JSON writes as \u alone
NEGATED = re.compile(r"\[\^(?:[^\]\\]|\\.)*\]")  # classes of a pattern that need not match such a character
WANTS_UNSPELLABLE = re.compile(
    rf"{UNSPELLABLE.pattern}|\\(?:x[01]|x7f|u00[01]|u007f|[xu]\{{|c[a-z]|0|a|v|p\{{c)", re.IGNORECASE
)
# What a complaint looks like, and the keyword it means; None: the keyword stands in the first group.
COMPLAINTS: tuple[tuple[str, str | None], ...] = (
    (r"Unimplemented keys: \[(.*)\]", None),
    (r"oneOf constraints", "oneOf"),
    (r"min/maxProperties", "minProperties, maxProperties"),
    (r"Unknown format", "format"),
    (r"(?:Resource|Pointer|Anchor) '.*' (?:is not present|does not exist)", "$ref"),
    (r"(?:patternProperty|pattern property)", "patternProperties"),
    (r"(?:for|of) '(\w+)'", None),
    (r"required property", "required"),
    (r"\b(minLength|minItems|minProperties|minimum|exclusiveMinimum|multipleOf|additionalProperties)\b", None),
    (r"regex|look-?around", "pattern"),
    (r"type must be|Invalid type", "type"),
    (r"\$ref|\$dynamicRef", "$ref"),
    (r"enum", "enum"),
)
# Keywords whose values are schemas, lists of schemas, or schemas by name.
NESTED = ("additionalProperties", "items", "contains", "propertyNames", "not", "if", "then", "else", "additionalItems")
LISTED = ("prefixItems", "anyOf", "allOf", "oneOf", "items")
NAMED = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")


def source(format: Format) -> str:
    """The grammar for the library. Raises UnsupportedFormat for what is wrong already here."""
    match format.kind:
        case FormatKind.JSON_SCHEMA | FormatKind.JSON_OBJECT:
            return _json_source(format)
        case FormatKind.REGEX:
            return LLMatcher.grammar_from_regex(format.text)
        case FormatKind.CHOICE:
            return LLMatcher.grammar_from_regex("|".join(map(re.escape, _choices(format))))
        case FormatKind.LARK:
            return LLMatcher.grammar_from_lark(format.text)


def refusal(format: Format, complaint: str) -> UnsupportedFormat:
    """The error for what the library says about a grammar."""
    reason = complaint.split("\n")[0].strip().removeprefix("ERROR: ") or "is not sound"
    if reason.endswith(":"):  # the regex parser's reason comes last
        reason = f"{reason} {complaint.strip().splitlines()[-1].removeprefix('error: ')}"
    return UnsupportedFormat(format.kind, _keyword(format, reason), reason)


def _keyword(format: Format, reason: str) -> str:
    if format.kind is not FormatKind.JSON_SCHEMA:
        return format.kind
    for pattern, keyword in COMPLAINTS:
        found = re.search(pattern, reason, re.IGNORECASE)
        if found:
            return keyword or found.group(1).replace('"', "")
    return "schema"


def _json_source(format: Format) -> str:
    schema = _schema(format)
    for part in _subschemas(schema):
        if not format.lenient and _counts_repeated_names(part):
            reason = "cannot be enforced beside names that the schema does not list: one could come twice"
            raise UnsupportedFormat(format.kind, "minProperties", reason)
        keyword = _unspellable(part)
        if keyword is not None:
            raise UnsupportedFormat(format.kind, keyword, "asks for a control character, which no output can have")
    try:
        return LLMatcher.grammar_from_json_schema(
            json.dumps(schema),
            overrides={
                "whitespace_flexible": format.whitespace,
                "lenient": format.lenient,
                "coerce_one_of": format.lenient,
                "json_allowed_escapes": ESCAPES,
                "json_allow_general_unicode_escapes": False,
                "item_separator": "," if format.whitespace else ", ",
                "key_separator": ":" if format.whitespace else ": ",
            },
        )
    except ValueError as error:
        raise UnsupportedFormat(format.kind, "schema", str(error)) from error


def _schema(format: Format) -> Mapping[str, object]:
    if format.kind is FormatKind.JSON_OBJECT:
        return {"type": "object"}
    try:
        schema = json.loads(format.text)
    except ValueError as error:
        raise UnsupportedFormat(format.kind, "schema", f"is not JSON: {error}") from error
    if schema is True:
        return {}
    if not isinstance(schema, dict):
        reason = "is false: nothing satisfies it" if schema is False else "is neither an object nor a boolean"
        raise UnsupportedFormat(format.kind, "schema", reason)
    # The library's own options inside a schema would overrule nothing, but are nobody's business here.
    return {name: value for name, value in schema.items() if name != "x-guidance"}


def _choices(format: Format) -> list[str]:
    """The texts of a closed list."""
    try:
        texts = json.loads(format.text)
    except ValueError as error:
        raise UnsupportedFormat(format.kind, "choice", f"is not JSON: {error}") from error
    if not (isinstance(texts, list) and texts and all(isinstance(text, str) and text for text in texts)):
        raise UnsupportedFormat(format.kind, "choice", "must be a list of texts, none of them empty")
    return list(dict.fromkeys(texts))


def _subschemas(schema: object) -> Iterator[Mapping[str, object]]:
    """A schema and all the schemas in it."""
    if not isinstance(schema, dict):
        return
    yield schema
    inner = [schema.get(name) for name in NESTED]
    for name in LISTED:
        members = schema.get(name)
        inner += members if isinstance(members, list) else []
    for name in NAMED:
        members = schema.get(name)
        inner += members.values() if isinstance(members, dict) else []
    for each in inner:
        yield from _subschemas(each)


def _unspellable(schema: Mapping[str, object]) -> str | None:
    """The keyword with a character that only \\u could spell: the library leaves it out without a word."""
    for keyword in ("const", "enum", "properties", "required"):
        if any(map(UNSPELLABLE.search, _texts(schema.get(keyword), deep=keyword != "properties"))):
            return keyword
    for keyword in ("pattern", "patternProperties"):
        patterns = _texts(schema.get(keyword), deep=False)
        if any(WANTS_UNSPELLABLE.search(NEGATED.sub("", pattern)) for pattern in patterns):
            return keyword
    return None


def _texts(value: object, *, deep: bool = True) -> Iterator[str]:
    """All strings in a JSON value, names of properties included; not `deep`: in its first level only."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, (dict, list)):
        yield from (name for name in value if isinstance(name, str))
        for member in (value.values() if isinstance(value, dict) else value) if deep else ():
            if not isinstance(member, str) or isinstance(value, dict):
                yield from _texts(member)


def _counts_repeated_names(schema: Mapping[str, object]) -> bool:
    """Whether minProperties could be met by giving one name twice, which counts once.

    Names that the schema lists come once each; others are told apart from them, but not from one another.
    """
    least = schema.get("minProperties", 0)
    required = schema.get("required", [])
    if not isinstance(least, (int, float)) or not isinstance(required, list):
        return False  # the library says what is wrong
    opened = schema.get("additionalProperties", True) is not False or bool(schema.get("patternProperties"))
    return opened and least - len(set(map(str, required))) > 1
