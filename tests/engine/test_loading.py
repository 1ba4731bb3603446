"""load and fingerprint."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine import EngineConfig, ModelError, Request, SamplingParams, load
from engine.loading import fingerprint


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "model"
    made.mkdir()
    (made / "config.json").write_text("{}")
    (made / "model.safetensors").write_bytes(bytes(1_000_000))
    (made / "README.md").write_text("hello")
    return made


def test_a_fingerprint_is_of_the_files_and_not_of_the_place(folder: Path, tmp_path: Path) -> None:
    before = fingerprint(folder)
    assert len(before) == 16
    moved = folder.rename(tmp_path / "elsewhere")
    assert fingerprint(moved) == before
    (moved / "README.md").write_text("changed")
    assert fingerprint(moved) == before


@pytest.mark.parametrize("offset", [0, 999_999])
def test_a_fingerprint_tells_other_weights_apart(folder: Path, offset: int) -> None:
    before = fingerprint(folder)
    with (folder / "model.safetensors").open("r+b") as stream:
        stream.seek(offset)
        stream.write(b"\x01")
    assert fingerprint(folder) != before


@pytest.mark.parametrize("change", ["size", "name", "more"])
def test_a_fingerprint_tells_other_files_apart(folder: Path, change: str) -> None:
    before = fingerprint(folder)
    if change == "size":
        (folder / "model.safetensors").write_bytes(bytes(1_000_001))
    elif change == "name":
        (folder / "config.json").rename(folder / "other.json")
    else:
        (folder / "tokenizer.json").write_text("{}")
    assert fingerprint(folder) != before


def test_a_path_without_a_model_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="there is no such file or folder") as caught:
        load(tmp_path / "none", EngineConfig())
    assert caught.value.path == str(tmp_path / "none")


@pytest.mark.model
def test_the_demo_model_answers(demo_model: Path) -> None:
    loaded = load(demo_model, EngineConfig(num_blocks=64))
    prompt = loaded.tokenizer.encode_chat([{"role": "user", "content": "What is the capital of France?"}])
    request = Request("a", tuple(prompt), SamplingParams(max_tokens=24, stop=("Paris",)))
    [output] = loaded.engine.generate([request])
    assert output.stopped_by == "Paris"
    assert "Paris" in loaded.tokenizer.decode(output.tokens)
    assert loaded.engine.max_model_len == 8192
    loaded.engine.close()
