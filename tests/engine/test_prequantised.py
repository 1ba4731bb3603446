"""Checkpoints that are quantised already, against models of the numbers that their codes stand for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from engine.errors import ModelError, UnsupportedModel
from engine.models import hugging_face, load_model
from engine.models.fusion import plain
from engine.models.matrices import Fp8Matrix
from kernels import native
from kernels.blocks import Blocks
from tests.engine.prequantised import WEIGHTS, Quantise, awq, compressed, fp8, gptq, int8, packed, write
from tests.engine.test_native import whole

Scheme = tuple[dict[str, Any], Quantise]


def of_gptq(
    group: int, *, bits: int = 4, symmetric: bool = True, act_order: bool = False, form: str = "gptq"
) -> Scheme:
    options = {"group_size": group, "desc_act": act_order, "sym": symmetric, "checkpoint_format": form}
    quantise = gptq(group=group, bits=bits, symmetric=symmetric, offset=form == "gptq", act_order=act_order)
    return {"quant_method": "gptq", "bits": bits, **options}, quantise


def of_awq(group: int) -> Scheme:
    config = {"quant_method": "awq", "bits": 4, "group_size": group, "zero_point": True, "version": "gemm"}
    return config, awq(group=group)


def of_packed(bits: int, group: int | None, *, symmetric: bool) -> Scheme:
    strategy = "channel" if group is None else "group"
    config = compressed("int", bits, strategy, "pack-quantized", group_size=group, symmetric=symmetric)
    return config, packed(group=group, bits=bits, symmetric=symmetric)


SCHEMES: dict[str, Scheme] = {
    "gptq, groups of 128": of_gptq(128),
    "gptq, groups of 64, asymmetric": of_gptq(64, symmetric=False),
    "gptq, no groups": of_gptq(-1),
    "gptq, 8 bits": of_gptq(64, bits=8),
    "gptq v2": of_gptq(64, symmetric=False, form="gptq_v2"),
    "gptq, act-order": of_gptq(64, symmetric=False, act_order=True),
    "awq, groups of 128": of_awq(128),
    "awq, groups of 64": of_awq(64),
    "awq, no groups": of_awq(-1),
    "packed, groups of 128": of_packed(4, 128, symmetric=True),
    "packed, groups of 32, asymmetric": of_packed(4, 32, symmetric=False),
    "packed, 8 bits, no groups": of_packed(8, None, symmetric=True),
    "int8": (compressed("int", 8, "channel", "int-quantized"), int8),
    "fp8": (compressed("float", 8, "channel", "float-quantized"), fp8(per_tensor=False)),
    "fp8, one scale": (compressed("float", 8, "tensor", "float-quantized"), fp8(per_tensor=True)),
}
UNFIT = "the quantised tensors of model.layers.1.mlp.up_proj do not fit together"
IN_CODES = [name for name in SCHEMES if "fp8" not in name and "act-order" not in name]


def matrices(folder: Path) -> dict[str, Any]:
    return dict(hugging_face.tensors(folder, hugging_face.read_config(folder)))


@pytest.mark.parametrize("name", SCHEMES)
def test_the_numbers_are_those_that_the_codes_stand_for(tmp_path, name):
    stored, twin = write(tmp_path, "llama", *SCHEMES[name])
    found, expected = matrices(stored), matrices(twin)
    assert found.keys() == expected.keys()
    for key, tensor in expected.items():
        assert torch.equal(plain(found[key]), tensor), key
    kind = Blocks if name in IN_CODES else Fp8Matrix if "fp8" in name else torch.Tensor
    assert isinstance(found["model.layers.1.mlp.down_proj.weight"], kind)


@pytest.mark.parametrize("name", ["gptq, groups of 128", "awq, groups of 64", "int8", "fp8"])
def test_models_answer_as_their_twins_to_the_bit(tmp_path, name):
    stored, twin = write(tmp_path, "qwen2", *SCHEMES[name])
    assert torch.equal(whole(load_model(stored)), whole(load_model(twin)))


@pytest.mark.skipif(not native.available(), reason=f"no native code: {native.reason()}")
@pytest.mark.parametrize("name", ["gptq, groups of 64, asymmetric", "awq, groups of 128", "int8"])
def test_weights_alone_lose_nothing(tmp_path, name):
    """In as many bits as the checkpoint has: embedding and head are in 8."""
    stored, twin = write(tmp_path, "llama-tied", *SCHEMES[name])
    tensors = load_file(twin / WEIGHTS)
    tensors["model.embed_tokens.weight"] = Blocks.of(tensors["model.embed_tokens.weight"], 8).dequantised()
    save_file(tensors, twin / WEIGHTS)
    dtype = "int8_weight_only" if name == "int8" else "int4_weight_only"
    assert torch.equal(whole(load_model(stored, dtype)), whole(load_model(twin)))


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ({"quant_method": "bitsandbytes"}, "method bitsandbytes; supported are gptq, awq, compressed-tensors"),
        ({"quant_method": "gptq", "bits": 3}, "bits=3; supported: 4, 8"),
        (
            {"quant_method": "gptq", "bits": 4, "group_size": 0},
            "group_size=0 is neither a positive whole number nor -1",
        ),
        (
            {"quant_method": "gptq", "bits": 4, "checkpoint_format": "marlin"},
            "checkpoint_format='marlin'; supported: gptq",
        ),
        ({"quant_method": "awq", "bits": 4, "version": "gemv"}, "version='gemv'; supported: gemm"),
        ({"quant_method": "awq", "bits": 4, "zero_point": False}, "zero_point=False; supported: True"),
        (compressed("float", 4, "group", "nvfp4-pack-quantized"), "num_bits=4; supported: 8"),
        (compressed("float", 8, "block", "float-quantized"), "strategy='block'; supported: tensor, channel"),
        (compressed("int", 8, "channel", "marlin-24"), "format='marlin-24'; supported: float-quantized"),
        (compressed("int", 8, "channel", "int-quantized") | {"transform_config": {"a": 1}}, "transform_config"),
        (compressed("int", 8, "channel", "int-quantized") | {"kv_cache_scheme": {"num_bits": 8}}, "kv_cache_scheme"),
        (compressed("int", 8, "channel", "int-quantized") | {"config_groups": {}}, "0 schemes for weights"),
    ],
)
def test_other_schemes_are_refused_by_name(tmp_path, config, reason):
    stored, _ = write(tmp_path, "llama", config, int8)
    with pytest.raises(UnsupportedModel) as caught:
        load_model(stored)
    assert caught.value.reason.startswith(f"quantization_config: {reason}")
    assert "take the checkpoint that it was made of and choose a dtype" in caught.value.reason
    assert caught.value.path == str(stored / "config.json")


@pytest.mark.parametrize(
    ("part", "change", "reason"),
    [
        ("qzeros", None, "model.layers.1.mlp.up_proj has no qzeros"),
        (
            "scales",
            lambda scales: scales[:1].contiguous(),
            UNFIT,
        ),
        (
            "qweight",
            lambda words: words[:4].contiguous(),
            UNFIT,
        ),
    ],
)
def test_tensors_that_do_not_fit_together(tmp_path, part, change, reason):
    stored, _ = write(tmp_path, "llama", *SCHEMES["gptq, groups of 64, asymmetric"])
    tensors = load_file(stored / WEIGHTS)
    name = f"model.layers.1.mlp.up_proj.{part}"
    tensors[name] = tensors[name] if change is None else change(tensors[name])
    if change is None:
        del tensors[name]
    save_file(tensors, stored / WEIGHTS)
    with pytest.raises(ModelError) as caught:
        load_model(stored)
    assert caught.value.reason.startswith(reason)


def test_quantised_tensors_without_a_word_in_the_configuration(tmp_path):
    stored, _ = write(tmp_path, "llama", *SCHEMES["int8"])
    config = json.loads((stored / "config.json").read_text())
    del config["quantization_config"]
    (stored / "config.json").write_text(json.dumps(config))
    with pytest.raises(UnsupportedModel, match=r"weight is of type torch\.int8"):
        load_model(stored)
