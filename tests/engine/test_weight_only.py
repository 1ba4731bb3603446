"""Weights alone in 8 or 4 bits: the answers of fp32 where the file has such codes, to the bit."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as Kind

from engine import EngineConfig
from engine.dtypes import cache_dtype
from engine.gguf_file import GGUFFile
from engine.models import Model, load_model
from engine.models.llama import Llama
from engine.models.native import NativeLlama
from engine.models.packing import pack
from kernels import native
from kernels.blocks import Blocks
from kernels.native import compiler, decoder
from kernels.native.library import open_library
from tests.engine.test_native import difference, sequences, whole
from tests.engine.tiny_models import KINDS, Paged, make, write_gguf

needs_native = pytest.mark.skipif(not native.available(), reason=f"no native code: {native.reason()}")
STORED = [Kind.Q4_0, Kind.Q4_1, Kind.Q8_0]
FAMILIES = ["llama-tied", "llama-head-dim", "qwen2"]
NAMES = {8: "int8_weight_only", 4: "int4_weight_only"}


def gguf_of(path: Path, kind: str, tensor_type: Kind) -> Path:
    write_gguf(path / "model.gguf", make(kind), KINDS[kind][2], tensor_type)
    return path / "model.gguf"


@pytest.mark.parametrize("kind", [*STORED, Kind.Q5_0, Kind.F32], ids=lambda kind: kind.name)
def test_what_a_file_holds_stays_in_its_own_codes(tmp_path, kind):
    file = GGUFFile.open(gguf_of(tmp_path, "llama", kind))
    for name in ("blk.0.attn_q.weight", "token_embd.weight", "output_norm.weight"):
        stored, expected = file.stored(name), file.tensor(name)
        own = kind in STORED and expected.ndim == 2
        assert isinstance(stored, Blocks) == own
        assert torch.equal(stored.dequantised() if isinstance(stored, Blocks) else stored, expected)


@needs_native
@pytest.mark.parametrize("tensor_type", STORED, ids=lambda kind: kind.name)
@pytest.mark.parametrize("family", FAMILIES)
def test_codes_of_a_file_answer_as_its_numbers_to_the_bit(tmp_path, family, tensor_type):
    path = gguf_of(tmp_path, family, tensor_type)
    found = load_model(path, NAMES[8])
    assert isinstance(found, NativeLlama)
    assert found.dtype == torch.float32
    assert torch.equal(whole(found), whole(load_model(path)))


@needs_native
def test_four_bits_are_kept_where_the_file_has_them(tmp_path):
    """But embedding and head: they have eight."""
    path = gguf_of(tmp_path, "llama", Kind.Q4_1)
    assert torch.equal(whole(load_model(path, NAMES[4])), whole(load_model(path)))
    eight = gguf_of(tmp_path, "llama", Kind.Q8_0)
    assert difference(whole(load_model(eight, NAMES[4])), whole(load_model(eight))) > 0.01


@pytest.mark.parametrize("bits", NAMES)
@pytest.mark.parametrize("family", FAMILIES)
def test_quantised_when_loaded(tmp_path, family, bits):
    """As a model of the rounded numbers: of embedding and head in 8 bits."""
    made = make(family)
    made.save_pretrained(tmp_path)
    plain = load_model(tmp_path, NAMES[bits], use_native=False)
    assert isinstance(plain, Llama)
    slow, exact = whole(plain), whole(load_model(tmp_path))
    fast = whole(load_model(tmp_path, NAMES[bits])) if native.available() else None
    for name, values in made.named_parameters():
        if values.ndim == 2:
            most = 8 if name in ("model.embed_tokens.weight", "lm_head.weight") else bits
            values.data = Blocks.of(values.data, most).dequantised()
    made.save_pretrained(tmp_path)
    rounded = whole(load_model(tmp_path))
    assert difference(slow, rounded) < 1e-5
    assert fast is None or torch.equal(fast, rounded)
    assert 1e-3 < difference(slow, exact) < {8: 0.06, 4: 0.6}[bits]


NO_HALVES = ("-mno-avx512f", "-mno-f16c")


@needs_native
@pytest.mark.parametrize(
    "missing",
    [(), ("-mno-avx512f",), pytest.param(NO_HALVES, marks=pytest.mark.slow)],  # whose library no other test builds
    ids=["new", "avx2", "half"],
)
@pytest.mark.parametrize("group", [32, 7])
@pytest.mark.parametrize("bits", NAMES)
def test_any_scales_and_groups_on_any_cpu(tmp_path, monkeypatch, bits, group, missing):
    """Scales beyond fp16, groups that end within a row; the numbers are those of a matrix of floats."""
    monkeypatch.setattr(decoder, "library", lambda: open_library(compiler.build(flags=missing)))
    make("qwen2").save_pretrained(tmp_path)
    model, expected = (load_model(tmp_path, "fp32") for _ in range(2))
    assert isinstance(model, NativeLlama)
    assert isinstance(expected, NativeLlama)
    codes: dict[str, Blocks | torch.Tensor] = {
        name: Blocks.of(values, bits, group) if values.ndim == 2 else values
        for name, values in make("qwen2").state_dict().items()
        if name != "lm_head.weight"
    }
    for name, blocks in codes.items():
        if isinstance(blocks, Blocks):
            odd = 2.0 ** torch.arange(17, -1, -1)  # exact in fp32, so that one rounding is as good as two
            scales = blocks.scales * (1 + odd[: blocks.scales.shape[1]] / 2**17)
            codes[name] = Blocks(blocks.codes, scales, blocks.minimums, group, bits)
    numbers = ((name, each.dequantised() if isinstance(each, Blocks) else each) for name, each in codes.items())
    pack(model._decoder, model.config, codes.items(), spread=False, bits=8)
    pack(expected._decoder, expected.config, numbers, spread=False)
    assert difference(whole(model), whole(expected)) < 1e-6


@needs_native
@pytest.mark.parametrize("bits", NAMES)
def test_a_row_is_the_same_to_the_bit_however_it_is_batched(tmp_path, bits):
    make("llama").save_pretrained(tmp_path)
    model: Model = load_model(tmp_path, NAMES[bits])
    pieces = Paged(model, sequences())
    for sizes in ({2: 61}, {0: 5, 1: 1}, {0: 11, 3: 2, 2: 1}, {0: 1, 3: 1}, {3: 3, 0: 1, 2: 64}, {0: 4, 3: 3, 2: 24}):
        pieces.step(sizes)
    pieces.step({0: 1})
    assert torch.equal(torch.cat([pieces.result(i) for i in range(4)]), whole(model))


def test_keys_and_values_are_in_fp32():
    assert {cache_dtype(EngineConfig(dtype=name)) for name in NAMES.values()} == {torch.float32}


def test_rows_in_ggmls_order_come_out_in_ours(tmp_path):
    """The rotary halves of queries and keys, in codes as in numbers."""
    values = make("llama").model.layers[1].self_attn.k_proj.weight.detach().numpy()
    path = gguf_of(tmp_path, "llama", Kind.Q8_0)
    raw = gguf.quants.quantize(values, Kind.Q8_0)
    weights = load_model(path, NAMES[8], use_native=False).weights  # type: ignore[attr-defined]
    assert np.array_equal(weights.layers[1].qkv.dequantised()[64:96].numpy(), gguf.quants.dequantize(raw, Kind.Q8_0))
