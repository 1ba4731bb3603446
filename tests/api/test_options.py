"""From command-line options to a request."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from api.cli.job_request import job_request
from api.cli.options import Calibration, Forced, JobOptions, OnLong, OnUnsupported, OptionError, RecipeName


def test_label() -> None:
    options = JobOptions(
        labels="good, bad",
        describe=["good=one likes it", "bad=a=b"],
        example=["bad=awful"],
        calibration=Calibration.CONTEXTUAL,
        column="body",
        temperature=0.5,
        keep_columns="id,body",
        on_long=OnLong.TRUNCATE_HEAD,
        max_rows=5,
        reuse=False,
        reorder=False,
    )
    request = job_request(options, "/in", "/out")
    assert request.model_dump(exclude_defaults=True, mode="json") == {
        "input": "/in",
        "output": "/out",
        "recipe": {
            "column": "body",
            "labels": ["good", "bad"],
            "descriptions": {"good": "one likes it", "bad": "a=b"},
            "examples": [{"text": "awful", "label": "bad"}],
            "calibration": "contextual",
        },
        "sampling": {"temperature": 0.5},
        "keep_columns": ["id", "body"],
        "on_long": "truncate_head",
        "max_rows": 5,
        "reuse": False,
        "reorder": False,
    }


def test_many_labels() -> None:
    options = JobOptions(labels="a,b", multi_label=True, threshold=0.3, label_probs=True)
    recipe = job_request(options, "/in", None).recipe.model_dump(exclude_defaults=True)
    assert recipe == {"labels": ("a", "b"), "multi_label": True, "threshold": 0.3, "label_probs": True}


@pytest.fixture
def schema(tmp_path: Path) -> Path:
    path = tmp_path / "schema.json"
    path.write_text('{"type": "object", "properties": {"z": {"type": "string"}, "a": {"type": "integer"}}}')
    return path


def test_extract(schema: Path) -> None:
    options = JobOptions(recipe=RecipeName.EXTRACT, schema=schema, keep_raw=True, forced=Forced.COMMIT)
    recipe = job_request(options, "/in", None).recipe.model_dump(exclude_defaults=True, mode="json")
    assert recipe == {"json_schema": json.loads(schema.read_text()), "keep_raw": True, "forced": "commit"}
    assert list(recipe["json_schema"]["properties"]) == ["z", "a"]
    options = JobOptions(recipe=RecipeName.EXTRACT, schema_column="s")
    assert job_request(options, "/in", None).recipe.model_dump(exclude_defaults=True) == {"schema_column": "s"}


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"format_regex": "a+"}, {"pattern": "a+"}),
        ({"format_choices": "yes, no"}, {"choices": ["yes", "no"]}),
        ({"schema_column": "s", "on_unsupported": OnUnsupported.VALIDATE},
         {"schema_column": "s", "on_unsupported": "validate"}),
    ],
)  # fmt: skip
def test_formats(given: dict[str, Any], expected: dict[str, Any]) -> None:
    request = job_request(JobOptions(recipe=RecipeName.CHAT, **given), "/in", None)
    assert request.recipe.model_dump(exclude_defaults=True, mode="json") == {"format": expected}


def test_a_format_from_a_file(schema: Path) -> None:
    options = JobOptions(recipe=RecipeName.GENERATE, template="{{ x }}", format_schema=schema, whitespace=True)
    format = job_request(options, "/in", None).recipe.model_dump(exclude_defaults=True)["format"]
    assert format == {"json_schema": json.loads(schema.read_text()), "whitespace": True}


def test_a_template_from_a_file(tmp_path: Path) -> None:
    (tmp_path / "t.jinja").write_text("{{ text }}")
    options = JobOptions(recipe=RecipeName.GENERATE, template=f"@{tmp_path / 't.jinja'}")
    assert job_request(options, "/in", None).recipe.model_dump()["template"] == "{{ text }}"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (JobOptions(), "--labels: the recipe label needs it"),
        (JobOptions(recipe=RecipeName.GENERATE), "--template: the recipe generate needs it"),
        (JobOptions(labels="a,b", max_words=9), "--max-words: the recipe label has no such option"),
        (JobOptions(recipe=RecipeName.CHAT, example=["a=b"]), "--example: the recipe chat has no such option"),
        (JobOptions(labels="a,b", example=["awful"]), "--example 'awful': write it as LABEL=TEXT"),
        (JobOptions(labels="a,b", top_p=2.0), "--top-p: Input should be less than or equal to 1"),
        (JobOptions(recipe=RecipeName.GENERATE, template="@/no/such"), "--template @/no/such: cannot be read: "),
        (JobOptions(labels="a,b", threshold=0.3), "--recipe: threshold means nothing without multi_label"),
        (JobOptions(recipe=RecipeName.EXTRACT), "--schema: the recipe extract needs it, or --schema-column"),
        (JobOptions(recipe=RecipeName.EXTRACT, schema=Path("/no")), "--schema /no: cannot be read: "),
        (JobOptions(recipe=RecipeName.EXTRACT, schema=Path(__file__)), f"--schema {__file__}: not JSON: "),
        (JobOptions(recipe=RecipeName.EXTRACT, format_regex="a"), "--format-regex: the recipe extract has no such"),
        (JobOptions(recipe=RecipeName.CHAT, schema=Path("x")), "--schema: the recipe chat has no such option; see"),
        (JobOptions(recipe=RecipeName.CHAT, keep_raw=True), "--keep-raw: means nothing without a format"),
        (
            JobOptions(recipe=RecipeName.CHAT, format_regex="a", format_choices="a"),
            "--format-choices, --format-regex: give one of them",
        ),
        (JobOptions(recipe=RecipeName.SUMMARIZE, format_regex="a"), "--format: the recipe summarize has no such"),
    ],
)
def test_mistakes(options: JobOptions, message: str) -> None:
    with pytest.raises(OptionError) as caught:
        job_request(options, "/in", None)
    assert str(caught.value).startswith(message)
