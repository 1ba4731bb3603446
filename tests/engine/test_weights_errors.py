"""What cannot be loaded is refused by name."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from engine.errors import InvalidRequest, ModelError, UnsupportedModel
from engine.models import load_model
from tests.engine.tiny_models import make

WEIGHTS = "model.safetensors"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    make("llama").save_pretrained(tmp_path)
    return tmp_path


def edit_config(folder: Path, **changes: Any) -> None:
    file = folder / "config.json"
    config = json.loads(file.read_text()) | changes
    file.write_text(json.dumps({name: value for name, value in config.items() if value != "absent"}))


def edit_weights(folder: Path, change: Callable[[dict[str, torch.Tensor]], object]) -> None:
    tensors = load_file(folder / WEIGHTS)
    change(tensors)
    save_file(tensors, folder / WEIGHTS)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        (
            {"architectures": ["GPT2LMHeadModel"]},
            "architecture GPT2LMHeadModel; supported are LlamaForCausalLM, MistralForCausalLM, Qwen2ForCausalLM, "
            "Qwen3ForCausalLM",
        ),
        ({"hidden_act": "gelu"}, "hidden_act gelu"),
        ({"attention_bias": True}, "attention_bias=true"),
        ({"mlp_bias": True}, "mlp_bias=true"),
        ({"rope_parameters": {"rope_type": "yarn"}}, "rope scaling yarn; supported is llama3"),
        ({"rope_parameters": None, "rope_scaling": {"type": "dynamic"}}, "rope scaling dynamic; supported is llama3"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor other than 1"),
    ],
)
def test_unsupported_options(folder, changes, reason):
    edit_config(folder, **changes)
    with pytest.raises(UnsupportedModel) as caught:
        load_model(folder)
    assert caught.value.reason == reason


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"hidden_size": "absent"}, "hidden_size is missing"),
        ({"hidden_size": None}, "hidden_size is missing"),
        ({"num_hidden_layers": 0}, "num_hidden_layers=0 is not a positive whole number"),
        ({"num_hidden_layers": "three"}, "num_hidden_layers='three' is not a positive whole number"),
        ({"rms_norm_eps": -1}, "rms_norm_eps=-1 is not a positive number"),
        ({"tie_word_embeddings": 1}, "tie_word_embeddings=1 is neither true nor false"),
        ({"eos_token_id": [2, "x"]}, "eos_token_id holds 'x', which is no token id"),
        ({"rope_parameters": [1]}, "rope_parameters=[1] is not an object"),
        ({"hidden_act": 7}, "hidden_act=7 is not text"),
        ({"num_key_value_heads": 3}, "the heads do not fit together: 4 query heads, 3 key/value heads of 16"),
        ({"num_hidden_layers": 4}, "tensor model.layers.3.input_layernorm.weight and 8 more missing"),
        ({"num_hidden_layers": 2}, "tensor model.layers.2.input_layernorm.weight is unexpected"),
        ({"vocab_size": 161}, "tensor lm_head.weight has shape [160, 64], expected [161, 64]"),
    ],
)
def test_wrong_configurations(folder, changes, reason):
    (folder / "generation_config.json").unlink()
    edit_config(folder, **changes)
    with pytest.raises(ModelError) as caught:
        load_model(folder)
    assert caught.value.reason == reason


def test_no_such_path(tmp_path):
    with pytest.raises(ModelError, match="there is no such file or folder"):
        load_model(tmp_path / "none")


def test_neither_folder_nor_gguf(folder):
    with pytest.raises(ModelError, match=r"is neither a folder nor a \.gguf file"):
        load_model(folder / WEIGHTS)


def test_unknown_dtype(folder):
    with pytest.raises(InvalidRequest, match="dtype='fp16': must be one of auto, fp32, bf16, int8"):
        load_model(folder, dtype="fp16")


@pytest.mark.parametrize("content", [None, "{", "[1]"])
def test_unreadable_config(folder, content):
    file = folder / "config.json"
    file.unlink() if content is None else file.write_text(content)
    reason = {None: "the file is missing", "{": "cannot be read as JSON", "[1]": "holds a JSON list, not an object"}
    with pytest.raises(ModelError, match=reason[content]) as caught:
        load_model(folder)
    assert caught.value.path == str(file)


def test_a_missing_tensor(folder):
    edit_weights(folder, lambda tensors: tensors.pop("model.layers.1.mlp.up_proj.weight"))
    with pytest.raises(ModelError, match=r"tensor model\.layers\.1\.mlp\.up_proj\.weight missing"):
        load_model(folder)


def test_an_unexpected_tensor(folder):
    edit_weights(folder, lambda tensors: tensors.update({"model.layers.0.self_attn.q_proj.bias": torch.zeros(64)}))
    with pytest.raises(ModelError, match=r"tensor model\.layers\.0\.self_attn\.q_proj\.bias is unexpected"):
        load_model(folder)


def test_harmless_extra_tensors(tmp_path):
    """Old checkpoints hold rotary frequencies, and some the tied embedding twice."""
    make("llama-tied").save_pretrained(tmp_path)
    extra = {
        "model.layers.0.self_attn.rotary_emb.inv_freq": torch.zeros(8),
        "lm_head.weight": torch.zeros(160, 64),
    }
    edit_weights(tmp_path, lambda tensors: tensors.update(extra))
    model = load_model(tmp_path)
    assert model.logits(torch.ones(1, 64)).abs().max() > 0.1


def test_a_quantised_tensor(folder):
    name = "model.layers.0.mlp.down_proj.weight"
    edit_weights(folder, lambda tensors: tensors.update({name: tensors[name].to(torch.float8_e4m3fn)}))
    with pytest.raises(UnsupportedModel, match=r"tensor model\.layers\.0\.mlp\.down_proj\.weight is of type"):
        load_model(folder)


def test_pickled_weights(folder):
    (folder / WEIGHTS).rename(folder / "pytorch_model.bin")
    with pytest.raises(UnsupportedModel, match=r"weights are pickled \(pytorch_model\.bin\)"):
        load_model(folder)


def test_no_weights(folder):
    (folder / WEIGHTS).unlink()
    with pytest.raises(ModelError, match=r"neither model\.safetensors nor model\.safetensors\.index\.json is there"):
        load_model(folder)


def test_cut_off_weights(folder):
    content = (folder / WEIGHTS).read_bytes()
    (folder / WEIGHTS).write_bytes(content[: len(content) // 2])
    with pytest.raises(ModelError, match="cannot be read as safetensors") as caught:
        load_model(folder)
    assert caught.value.path == str(folder / WEIGHTS)


@pytest.mark.parametrize("shard", ["gone.safetensors", "../model.safetensors"])
def test_an_index_of_files_that_are_not_there(folder, shard):
    (folder / WEIGHTS).unlink()
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"model.norm.weight": shard}}))
    with pytest.raises(ModelError, match=f"names '{shard}', which is not in the folder"):
        load_model(folder)


def test_a_tensor_in_two_shards(folder):
    tensors = load_file(folder / WEIGHTS)
    (folder / WEIGHTS).unlink()
    save_file(tensors, folder / "a.safetensors")
    save_file({"model.norm.weight": tensors["model.norm.weight"]}, folder / "b.safetensors")
    index = {"weight_map": {"x": "a.safetensors", "y": "b.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ModelError, match=r"tensor model\.norm\.weight is there twice"):
        load_model(folder)
