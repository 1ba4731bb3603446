"""docs/recipes.md says what there is: every recipe, format, option and column, and nothing else."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

import pytest

from db.columns import added_fields
from db.formats import FormatOptions, OutputFormat
from db.settings import Settings
from db.specs import JobSpec, Recipe
from db.stores.errors import StorageMissing, StorageRefused, StorageUnavailable, StorageUnsafe

TEXT = (Path(__file__).resolve().parents[2] / "docs" / "recipes.md").read_text()
KINDS = {kind.model_fields["kind"].default: kind for kind in get_args(get_args(Recipe)[0])}
FORMATS = {format.model_fields["type"].default: format for format in get_args(get_args(OutputFormat)[0])}
SECTIONS = dict(re.findall(r"^## (.+?)\n(.*?)(?=^## |\Z)", TEXT, re.MULTILINE | re.DOTALL))


def test_every_recipe_has_its_section() -> None:
    assert set(list(SECTIONS)[:6]) == set(KINDS)
    assert list(SECTIONS)[6:] == ["Long texts", "Formats", "Error rows"]


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_every_option_is_told(kind: str) -> None:
    # What a recipe shares with all formats stands there; the columns of a template are the service's to fill in.
    fields = set(KINDS[kind].model_fields) - {"kind", "columns"} - set(FormatOptions.model_fields)
    told = SECTIONS[kind] + SECTIONS["Formats"] * issubclass(KINDS[kind], FormatOptions)
    assert sorted(name for name in fields if f"`{name}`" not in told) == []


def test_every_format_is_told() -> None:
    assert re.findall(r"^\| `(\w+)` \|", SECTIONS["Formats"], re.MULTILINE) == list(FORMATS)
    fields = {name for format in FORMATS.values() for name in format.model_fields} - {"type"}
    assert sorted(name for name in fields if f"`{name}`" not in SECTIONS["Formats"]) == []


@pytest.mark.parametrize(
    "recipe",
    [
        {"kind": "label", "labels": ["a", "b"], "label_probs": True, "abstain_below": 0.5},
        {"kind": "label", "labels": ["a", "b"], "label_probs": True, "multi_label": True},
        {"kind": "chat", "format": {"type": "json_object", "keep_raw": True}},
        {"kind": "openai"},
    ],
)
def test_every_column_is_told_with_its_type(recipe: dict[str, object]) -> None:
    sampling = {} if recipe["kind"] == "openai" else {"logprobs": 1}
    spec = JobSpec.model_validate({"input": "in", "model": "m", "recipe": recipe, "sampling": sampling})
    types = {"label_probs": "list<struct<label, prob>>", "error": "struct<code, message>", "labels": "list<string>"}
    types["choices"] = "list<struct<text, finish_reason, logprobs>>"
    for field in added_fields(spec):
        told = re.search(rf"^\| [^|]*`{field.name}`[^|]* \| ([^|]+) \|", TEXT, re.MULTILINE)
        assert told is not None, field.name
        assert told[1] == types.get(field.name, str(field.type)), field.name


def test_storage_tells_its_settings_and_errors() -> None:
    text = (Path(__file__).resolve().parents[2] / "docs" / "storage.md").read_text()
    names = [f"NIGHTMILL_{name.upper()}" for name in Settings.model_fields if name.startswith("s3_")]
    codes = [error.code for error in (StorageMissing, StorageRefused, StorageUnavailable, StorageUnsafe)]
    assert [word for word in (*names, *codes) if f"`{word}`" not in text] == []
    assert len(names) == 3
