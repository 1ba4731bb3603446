"""A model with weights, activations, keys and values in fp8, in the interpreter."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from engine.cache import KVCache
from engine.models import load_model
from engine.models.llama import Llama
from engine.models.matrices import Fp8Matrix, QuantisedRows, Rows, linear
from engine.models.ops import TorchOps
from kernels import reference
from tests.engine.tiny_models import Paged, expected_logits, make


def test_linear_quantises_rows_that_are_not_yet():
    generator = torch.Generator().manual_seed(0)
    x, weight, bias = (torch.randn(size, generator=generator) for size in ((3, 32), (5, 32), (5,)))
    found = linear(x, Fp8Matrix.of(weight), bias)
    wide = [values.float() * scales for values, scales in map(reference.quantise_rows_fp8, (x, weight))]
    torch.testing.assert_close(found, wide[0] @ wide[1].t() + bias, atol=1e-5, rtol=1e-5)
    # e4m3 has three bits behind the point: half a unit in the last place is 1/16 at most.
    assert ((found - bias) - x @ weight.t()).std() < 0.06 * (x @ weight.t()).std()


class ReferenceOps(TorchOps):
    """Rows quantised by the reference."""

    def normed_rows(self, x: Tensor, residual: Tensor | None, weight: Tensor, eps: float) -> tuple[Rows, Tensor]:
        normed, total = super().normed_rows(x, residual, weight, eps)
        return QuantisedRows(*reference.quantise_rows_fp8(normed), x.dtype), total

    def mixed_rows(self, gate_up: Tensor) -> Rows:
        return QuantisedRows(*reference.quantise_rows_fp8(reference.silu_and_mul(gate_up)), gate_up.dtype)


def test_logits_are_those_of_the_reference_and_near_those_in_fp32(tmp_path: Path):
    made = make("qwen2", num_hidden_layers=1)
    made.save_pretrained(tmp_path)
    tokens = [list(range(3, 12)), [5, 6, 7]]
    plain = expected_logits(made, tokens[0])
    model = load_model(tmp_path, "fp8", "interpret")
    assert isinstance(model, Llama)

    def logits(model: Llama, cache_dtype: torch.dtype) -> Tensor:
        run = Paged(model, tokens, cache_dtype=cache_dtype)
        run.step({0: 8, 1: 2})
        run.step({0: 1, 1: 1})
        return run.result(0)

    found = logits(model, torch.float32)
    expected = logits(Llama(model.config, model.weights, ReferenceOps()), torch.float32)
    # But for numbers on the edge between two of fp8's, which the last bit of a norm decides.
    assert (found - expected).std() < 0.03 * plain.std()
    assert 0.01 * plain.std() < (found - plain).std() < 0.25 * plain.std()
    assert (logits(model, torch.float8_e4m3fn) - plain).std() < 0.25 * plain.std()


def test_the_cache_takes_half_of_bf16():
    sizes = (2, 8, 16, 4, 64)
    half, whole = (KVCache(*sizes, dtype, torch.device("cpu")) for dtype in (torch.float8_e4m3fn, torch.bfloat16))
    assert 2 * half.bytes_per_block == whole.bytes_per_block
