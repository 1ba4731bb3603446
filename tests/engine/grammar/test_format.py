"""Format: values and what they refuse."""

from __future__ import annotations

import pytest

from engine import Format, FormatKind, InvalidRequest, Request, SamplingParams


def test_plain_strings_name_kinds() -> None:
    assert Format("regex", "a+") == Format(FormatKind.REGEX, "a+")  # type: ignore[arg-type]
    assert Format("regex", "a+").kind is FormatKind.REGEX  # type: ignore[arg-type]


def test_schemas_and_choices_are_kept_as_json() -> None:
    assert Format.schema({"type": "integer"}).text == '{"type": "integer"}'
    assert Format.schema(True).text == "true"
    assert Format.choice(["a", "b"]) == Format(FormatKind.CHOICE, '["a", "b"]')


@pytest.mark.parametrize(
    ("field", "values"),
    [
        ("format.kind", {"kind": "xml", "text": "x"}),
        ("format.text", {"kind": "regex"}),
        ("format.text", {"kind": "json_object", "text": "{}"}),
        ("format.whitespace", {"kind": "regex", "text": "a", "whitespace": True}),
        ("format.lenient", {"kind": "json_object", "lenient": True}),
    ],
)
def test_what_means_nothing_is_refused(field: str, values: dict[str, object]) -> None:
    with pytest.raises(InvalidRequest) as caught:
        Format(**values)  # type: ignore[arg-type]
    assert caught.value.field == field


@pytest.mark.parametrize(
    ("field", "values"),
    [
        ("choices", {"choices": ((1,), (2,))}),
        ("forced", {"forced": "always"}),
        ("min_tokens", {"sampling": SamplingParams(min_tokens=1)}),
        ("ignore_eos", {"sampling": SamplingParams(ignore_eos=True)}),
        ("logprobs", {"sampling": SamplingParams(logprobs=0), "forced": "commit"}),
    ],
)
def test_requests_refuse_what_a_format_leaves_no_room_for(field: str, values: dict[str, object]) -> None:
    with pytest.raises(InvalidRequest) as caught:
        Request(1, (1,), format=Format("json_object"), **values)  # type: ignore[arg-type]
    assert caught.value.field == field


def test_committing_needs_a_format() -> None:
    with pytest.raises(InvalidRequest, match="needs a format"):
        Request(1, (1,), forced="commit")
