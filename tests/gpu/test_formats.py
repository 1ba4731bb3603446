"""Models with quantised weights by the kernels' path, in the interpreter, against those of the same numbers."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from engine.errors import UnsupportedModel
from engine.models import load_model
from engine.models.llama import Llama
from engine.models.matrices import Fp8Matrix, Int8Matrix
from kernels.blocks import PackedBlocks
from tests.engine.prequantised import Quantise, awq, compressed, fp8, int8, write
from tests.engine.tiny_models import Paged, make

TOKENS = [list(range(3, 12)), [5, 6, 7]]
AWQ = {"quant_method": "awq", "bits": 4, "group_size": 64, "zero_point": True, "version": "gemm"}
INT8 = compressed("int", 8, "channel", "int-quantized")
FP8 = compressed("float", 8, "tensor", "float-quantized")


# Of the logits' spread. Some cases take long and show what the others do.
NEAR = [("int8", 0.08), pytest.param("int8_weight_only", 0.02, marks=pytest.mark.slow), ("int4_weight_only", 0.5)]


def logits(path: Path, dtype: str, device: str = "interpret") -> tuple[Llama, Tensor]:
    model = load_model(path, dtype, device, use_native=False)
    assert isinstance(model, Llama)
    run = Paged(model, TOKENS, cache_dtype=torch.float32)
    run.step({0: 8, 1: 2})
    run.step({0: 1, 1: 1})
    return model, torch.cat([run.result(0), run.result(1)])


@pytest.mark.parametrize(("dtype", "most"), NEAR)
def test_logits_are_near_those_in_fp32(tmp_path: Path, dtype: str, most: float):
    make("qwen2", num_hidden_layers=1).save_pretrained(tmp_path)
    _, plain = logits(tmp_path, "fp32", "cpu")
    model, found = logits(tmp_path, dtype)
    assert isinstance(model.weights.layers[0].down, Int8Matrix if dtype == "int8" else PackedBlocks)
    assert isinstance(model.weights.embedding, Tensor)
    assert 1e-4 * plain.std() < (found - plain).std() < most * plain.std()


@pytest.mark.parametrize(
    ("dtype", "config", "quantise", "most"),
    [
        ("int4_weight_only", AWQ, awq(group=64), 1e-5),
        pytest.param("int8_weight_only", INT8, int8, 1e-5, marks=pytest.mark.slow),
        ("int8", INT8, int8, 0.08),  # rows are quantised, and that alone
        ("fp8", FP8, fp8(per_tensor=True), 0.25),
    ],
)
def test_checkpoints_keep_their_codes(
    tmp_path: Path, dtype: str, config: dict[str, object], quantise: Quantise, most: float
):
    stored, twin = write(tmp_path, "llama-tied", config, quantise)
    _, expected = logits(twin, "fp32", "cpu")
    model, found = logits(stored, dtype)
    assert (found - expected).std() < most * expected.std()
    down = model.weights.layers[1].down
    if isinstance(down, Int8Matrix | Fp8Matrix):
        numbers = down.values.float() * down.scales
        assert torch.equal(numbers, load_model(twin, use_native=False).weights.layers[1].down)  # type: ignore[attr-defined]


def test_groups_that_the_kernels_cannot_take(tmp_path: Path):
    stored, _ = write(tmp_path, "llama", AWQ | {"group_size": 8}, awq(group=8))
    with pytest.raises(UnsupportedModel, match="groups of 8 inputs are no multiple of 16; take another dtype"):
        load_model(stored, "int4_weight_only", "interpret")
