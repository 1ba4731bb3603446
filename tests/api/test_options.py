"""From command-line options to a request."""

from __future__ import annotations

from pathlib import Path

import pytest

from api.cli.options import Calibration, JobOptions, OnLong, OptionError, RecipeName, job_request


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
    }


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
    ],
)
def test_mistakes(options: JobOptions, message: str) -> None:
    with pytest.raises(OptionError) as caught:
        job_request(options, "/in", None)
    assert str(caught.value).startswith(message)
