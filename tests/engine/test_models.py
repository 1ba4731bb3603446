"""Every architecture, from every kind of file, against transformers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
import transformers

from engine.models import Model, load_model
from tests.engine.tiny_models import KINDS, VOCAB, Paged, expected_logits, make, write_gguf

TOLERANCE = 1e-3  # fp32 logits of size 1 to 10
LENGTHS = (23, 1, 37, 9)


@pytest.fixture(scope="module", autouse=True)
def _one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def sequences() -> list[list[int]]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randint(0, VOCAB, (length,), generator=generator).tolist() for length in LENGTHS]


def check_in_slices(model: Model, reference) -> None:
    """Whole prompts, chunks, single tokens and drafts, mixed in one batch, give transformers' logits everywhere."""
    tokens = sequences()
    expected = [expected_logits(reference, sequence) for sequence in tokens]
    whole = Paged(model, tokens)
    whole.step(dict(enumerate(LENGTHS)))
    pieces = Paged(model, tokens)
    pieces.step({0: 5, 1: 1, 2: 37})
    pieces.step({0: 11, 3: 2})
    pieces.step({0: 1, 3: 1})
    pieces.step({3: 3, 0: 1})
    pieces.step({0: 4, 3: 3})
    pieces.step({0: 1})
    singles = Paged(model, tokens)
    for place in range(max(LENGTHS)):
        singles.step({i: 1 for i, length in enumerate(LENGTHS) if place < length})
    for run in (whole, pieces, singles):
        for i, logits in enumerate(expected):
            torch.testing.assert_close(run.result(i), logits, atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize("kind", KINDS)
def test_safetensors(kind, tmp_path):
    reference = make(kind)
    reference.save_pretrained(tmp_path)
    model = load_model(tmp_path)
    assert [path.name for path in tmp_path.glob("*.safetensors")] == ["model.safetensors"]
    assert model.config.architecture == f"{KINDS[kind][0]}ForCausalLM"
    assert model.config.eos_token_ids == {2}
    check_in_slices(model, reference)


@pytest.mark.parametrize("kind", KINDS)
def test_gguf(kind, tmp_path):
    reference = make(kind)
    write_gguf(tmp_path / "model.gguf", reference, KINDS[kind][2])
    model = load_model(tmp_path / "model.gguf")
    assert model.config.architecture == KINDS[kind][2]
    assert model.config.tie_embeddings == reference.config.tie_word_embeddings
    assert model.config.eos_token_ids == {2}
    check_in_slices(model, reference)


@pytest.mark.parametrize("kind", ["llama-tied", "qwen2"])
def test_shards(kind, tmp_path):
    reference = make(kind)
    reference.save_pretrained(tmp_path, max_shard_size="100KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 2
    assert not (tmp_path / "model.safetensors").exists()
    check_in_slices(load_model(tmp_path), reference)


def test_bf16_weights_in_fp32_and_bf16(tmp_path):
    make("llama").bfloat16().save_pretrained(tmp_path)
    wide = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    check_in_slices(load_model(tmp_path), wide)
    model = load_model(tmp_path, dtype="bf16")
    run = Paged(model, sequences())
    run.step(dict(enumerate(LENGTHS)))
    expected = expected_logits(wide, sequences()[2])
    # bf16 keeps 8 bits: some per cent of the logits' spread after three layers.
    assert (run.result(2) - expected).std() < 0.03 * expected.std()
    assert run.cache.dtype == torch.bfloat16


def test_a_slice_does_not_feel_its_neighbours(tmp_path):
    make("llama").save_pretrained(tmp_path)
    model = load_model(tmp_path)
    together, alone = Paged(model, sequences()), Paged(model, sequences())
    together.step({0: 20, 1: 1, 2: 30, 3: 9})
    alone.step({0: 20})
    together.step({0: 1, 2: 1})
    alone.step({0: 1})
    torch.testing.assert_close(together.result(0), alone.result(0), atol=1e-5, rtol=0)


def test_rope_scaling_in_transformers_4_spelling(tmp_path):
    """The keys before transformers 5: rope_theta beside rope_scaling, and `type` for `rope_type`."""
    reference = make("llama-llama3-rope")
    reference.save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    rope = config.pop("rope_parameters")
    config["rope_theta"] = rope.pop("rope_theta")
    config["rope_scaling"] = {"type" if name == "rope_type" else name: value for name, value in rope.items()}
    (tmp_path / "config.json").write_text(json.dumps(config))
    check_in_slices(load_model(tmp_path), reference)


def test_a_sliding_window_ends_the_positions(tmp_path: Path):
    make("mistral", sliding_window=40).save_pretrained(tmp_path)
    assert load_model(tmp_path).config.max_position == 40


def test_a_sliding_window_that_is_not_used(tmp_path: Path):
    make("qwen2", sliding_window=40, use_sliding_window=False).save_pretrained(tmp_path)
    assert load_model(tmp_path).config.max_position == 512
