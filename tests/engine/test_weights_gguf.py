"""GGUF files: quantised tensors as the gguf package reads them, and refusals by name."""

from __future__ import annotations

import struct
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as Kind

from engine.errors import ModelError, UnsupportedModel
from engine.gguf_file import GGUFFile
from engine.models import load_model
from tests.engine.tiny_models import make, write_gguf


def write_tensor(path: Path, raw: np.ndarray, kind: Kind, **numbers: int) -> None:
    writer = gguf.GGUFWriter(path, "llama")
    for key, value in numbers.items():
        writer.add_uint32(key.replace("__", "."), value)
    writer.add_tensor("x", raw, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.mark.parametrize(
    "kind", [Kind.F32, Kind.F16, Kind.BF16, Kind.Q4_0, Kind.Q4_1, Kind.Q5_0, Kind.Q5_1, Kind.Q8_0], ids=lambda k: k.name
)
def test_tensor_types_that_the_package_writes(tmp_path, kind):
    values = np.random.default_rng(0).standard_normal((6, 64), np.float32)
    raw = gguf.quants.quantize(values, kind)
    write_tensor(tmp_path / "x.gguf", raw, kind)
    tensor = GGUFFile.open(tmp_path / "x.gguf").tensor("x")
    assert tensor.dtype == torch.float32
    assert np.array_equal(tensor.numpy(), gguf.quants.dequantize(raw, kind))
    # Three bits at least of what was written come back.
    assert np.abs(tensor.numpy() - values).max() < 0.5


@pytest.mark.parametrize(
    "kind",
    [Kind.Q2_K, Kind.Q3_K, Kind.Q4_K, Kind.Q5_K, Kind.Q6_K, Kind.IQ4_NL, Kind.IQ4_XS],
    ids=lambda k: k.name,
)
def test_tensor_types_that_the_package_only_reads(tmp_path, kind):
    """Random bits in the packed part, small numbers where a block keeps its scales."""
    block_size, block_bytes = gguf.GGML_QUANT_SIZES[kind]
    raw = np.random.default_rng(0).integers(0, 60, (6, 512 // block_size * block_bytes), np.uint8)
    write_tensor(tmp_path / "x.gguf", raw, kind)
    tensor = GGUFFile.open(tmp_path / "x.gguf").tensor("x")
    assert tensor.shape == (6, 512)
    assert np.array_equal(tensor.numpy(), gguf.quants.dequantize(raw, kind))


@pytest.mark.parametrize("kind", [Kind.Q8_0, Kind.Q4_1, Kind.BF16], ids=lambda k: k.name)
def test_a_quantised_model_holds_its_dequantised_weights(tmp_path, kind):
    reference = make("llama")
    write_gguf(tmp_path / "model.gguf", reference, "llama", kind)
    weights = load_model(tmp_path / "model.gguf", use_native=False).weights
    layer = reference.model.layers[1]

    def rounded(tensor: torch.Tensor) -> torch.Tensor:
        """Rows are quantised one by one, so their order in the file does not matter."""
        raw = gguf.quants.quantize(tensor.detach().numpy(), kind)
        return torch.from_numpy(gguf.quants.dequantize(raw, kind))

    assert torch.equal(weights.embedding, rounded(reference.model.embed_tokens.weight))
    attention = layer.self_attn
    qkv = [rounded(part.weight) for part in (attention.q_proj, attention.k_proj, attention.v_proj)]
    assert torch.equal(weights.layers[1].qkv, torch.cat(qkv))
    gate_up = torch.cat([rounded(layer.mlp.gate_proj.weight), rounded(layer.mlp.up_proj.weight)])
    assert torch.equal(weights.layers[1].gate_up, gate_up)
    assert torch.equal(weights.layers[1].down, rounded(layer.mlp.down_proj.weight))
    assert torch.equal(weights.norm, reference.model.norm.weight)


def test_metadata_equals_the_package_s_own_reading(tmp_path):
    path = tmp_path / "x.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_array("texts", ["a", "", "ü€😀"])
    writer.add_array("numbers", [1, -2, 3])
    writer.add_array("floats", [0.5, -1.25])
    writer.add_bool("yes", True)
    writer.add_float64("double", 1e300)
    writer.add_uint64("large", 2**63)
    writer.add_int8("small", -7)
    writer.add_tensor("x", np.zeros((2, 3), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    file, reader = GGUFFile.open(path), gguf.GGUFReader(path)
    theirs = {name: field.contents() for name, field in reader.fields.items() if not name.startswith("GGUF.")}
    assert file.fields.values == theirs
    assert file.places["x"].shape == (2, 3)
    assert file.places["x"].offset == reader.tensors[0].data_offset


@pytest.mark.parametrize(
    ("architecture", "extra", "reason"),
    [
        ("llama", {"llama.expert_count": 8}, "a mixture of 8 experts"),
        ("llama", {"llama.rope.dimension_count": 8}, "rope.dimension_count=8 other than the key's 16"),
        ("llama", {"llama.attention.value_length": 8}, "attention.value_length=8 other than the key's 16"),
        ("llama", {"llama.rope.scale_linear": 2}, "rope.scale_linear=2.0"),
        ("gemma", {}, "architecture gemma; supported are llama, qwen2, qwen3"),
        ("llama", {"split.count": 3}, "is one of 3 parts; only single GGUF files are read"),
    ],
)
def test_unsupported_options(tmp_path, architecture, extra, reason):
    write_gguf(tmp_path / "model.gguf", make("llama"), architecture, extra=extra)
    with pytest.raises(UnsupportedModel) as caught:
        load_model(tmp_path / "model.gguf")
    assert caught.value.reason == reason


def test_biases_that_llama_does_not_have(tmp_path):
    write_gguf(tmp_path / "model.gguf", make("qwen2"), "llama")
    with pytest.raises(ModelError, match=r"tensor model\.layers\.0\.self_attn\.q_proj\.bias is unexpected"):
        load_model(tmp_path / "model.gguf")


def test_a_tensor_of_another_model(tmp_path):
    write_tensor(tmp_path / "model.gguf", np.zeros((2, 4), np.float32), Kind.F32)
    with pytest.raises(ModelError, match=r"tensor token_embd\.weight missing"):
        load_model(tmp_path / "model.gguf")


def test_a_sliding_window_ends_the_positions(tmp_path):
    write_gguf(tmp_path / "model.gguf", make("llama"), "llama", extra={"llama.attention.sliding_window": 40})
    assert load_model(tmp_path / "model.gguf").config.max_position == 40


def test_end_of_turn_is_an_end(tmp_path):
    write_gguf(tmp_path / "model.gguf", make("llama"), "llama", extra={"tokenizer.ggml.eot_token_id": 9})
    assert load_model(tmp_path / "model.gguf").config.eos_token_ids == {2, 9}


def test_every_cut_file_is_refused(tmp_path):
    path = tmp_path / "model.gguf"
    write_gguf(path, make("llama"), "llama")
    content = path.read_bytes()
    for length in (0, 3, 4, 10, 24, 100, 1000, len(content) // 2, len(content) - 64):
        path.write_bytes(content[:length])
        with pytest.raises(ModelError):
            load_model(path)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"PK\x03\x04" + bytes(100), "is not a sound GGUF file: it does not begin with GGUF"),
        (b"GGUF" + struct.pack("<IQQ", 1, 0, 0), "GGUF version 1; supported are 2 and 3, little-endian"),
        (b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 2**60), "is not a sound GGUF file: a text reaches beyond the end"),
        (
            b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 1) + b"k" + struct.pack("<I", 99),
            "is not a sound GGUF file: it holds a value of unknown type 99",
        ),
        (
            b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 1) + b"k" + struct.pack("<IIQ", 9, 4, 2**62),
            "is not a sound GGUF file:",
        ),
    ],
)
def test_damaged_headers(tmp_path, content, reason):
    path = tmp_path / "model.gguf"
    path.write_bytes(content)
    with pytest.raises(ModelError) as caught:
        GGUFFile.open(path)
    assert caught.value.reason.startswith(reason)
