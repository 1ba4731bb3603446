"""The weights of a Llama-family model as tensors, fused where one matrix product serves several projections."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor

from engine.models.config import ModelConfig
from kernels.blocks import Blocks
from kernels.quantised import int8_linear, quantise_rows, spread, spread_weights
from kernels.reference import quantise_rows_fp8


@dataclass(frozen=True, slots=True)
class Int8Matrix:
    """A matrix [out, in] of 8-bit numbers, each row with a scale of its own."""

    values: Tensor  # [out, in] int8
    scales: Tensor  # [out, 1] fp32
    spread: bool  # rows that it is multiplied with are spread first (kernels.quantised)

    @classmethod
    def of(cls, matrix: Tensor, *, spread: bool = True) -> Int8Matrix:
        return cls(*quantise_rows(spread_weights(matrix) if spread else matrix), spread)


@dataclass(frozen=True, slots=True)
class Fp8Matrix:
    """A matrix [out, in] in fp8 e4m3, each row with a scale of its own. For GPUs."""

    values: Tensor  # [out, in] float8_e4m3fn
    scales: Tensor  # [out, 1] fp32

    @classmethod
    def of(cls, matrix: Tensor) -> Fp8Matrix:
        return cls(*quantise_rows_fp8(matrix))

    @property
    def shape(self) -> torch.Size:
        return self.values.shape

    def dequantised(self) -> Tensor:
        """[out, in] fp32."""
        return self.values.float() * self.scales

    def chunk(self, count: int, dim: int) -> tuple[Fp8Matrix, ...]:
        """As Tensor.chunk."""
        scales = self.scales.chunk(count) if dim == 0 else (self.scales,) * count
        return tuple(map(Fp8Matrix, self.values.chunk(count, dim), scales))


@dataclass(frozen=True, slots=True)
class Fp8Rows:
    """Rows that were quantised where they came from."""

    values: Tensor  # [T, in] float8_e4m3fn
    scales: Tensor  # [T, 1] fp32
    dtype: torch.dtype  # of products with them


M = TypeVar("M", Tensor, Int8Matrix, Fp8Matrix, Blocks)
Matrix = Tensor | Int8Matrix | Fp8Matrix | Blocks
Rows = Tensor | Fp8Rows


def linear(x: Rows, matrix: Matrix, bias: Tensor | None = None) -> Tensor:
    """x [T, in] times the matrix's transpose, plus bias -> [T, out]. For int8 and fp8 rows of x are quantised too."""
    if isinstance(matrix, Fp8Matrix):
        return _fp8_linear(x, matrix, bias)
    assert isinstance(x, Tensor), "rows in fp8 come to matrices in fp8"
    if isinstance(matrix, Tensor):
        return F.linear(x, matrix, bias)
    if isinstance(matrix, Blocks):
        return F.linear(x, matrix.dequantised().to(x.dtype), bias)
    product = int8_linear(spread(x) if matrix.spread else x, matrix.values, matrix.scales)
    return product if bias is None else product + bias


def _fp8_linear(x: Rows, matrix: Fp8Matrix, bias: Tensor | None) -> Tensor:
    from kernels.gpu.matmul import fp8_linear  # imports Triton, which not every machine has

    rows = x if isinstance(x, Fp8Rows) else Fp8Rows(*quantise_rows_fp8(x), x.dtype)
    product = fp8_linear(rows.values, rows.scales, matrix.values, matrix.scales, rows.dtype)
    return product if bias is None else product + bias


def lookup(ids: Tensor, matrix: Matrix) -> Tensor:
    """Rows [T, in] of a matrix, which is not in fp8."""
    assert not isinstance(matrix, Fp8Matrix), "embeddings are kept as they are"
    if isinstance(matrix, Tensor):
        return F.embedding(ids, matrix)
    if isinstance(matrix, Blocks):
        return matrix.rows(ids).dequantised()
    rows = matrix.values[ids] * matrix.scales[ids]
    return spread(rows) if matrix.spread else rows  # spread twice: what the rows were


@dataclass(frozen=True, slots=True)
class LayerWeights(Generic[M]):
    """One decoder layer. Matrices are [out, in]."""

    attention_norm: Tensor  # [hidden]
    qkv: M  # [query + 2 * kv, hidden]
    qkv_bias: Tensor | None  # [query + 2 * kv]
    query_norm: Tensor | None  # [head_dim]
    key_norm: Tensor | None  # [head_dim]
    output: M  # [hidden, query]
    mlp_norm: Tensor  # [hidden]
    gate_up: M  # [2 * intermediate, hidden]
    down: M  # [hidden, intermediate]


@dataclass(frozen=True, slots=True)
class Weights(Generic[M]):
    """A whole model. With tied embeddings, lm_head is the embedding."""

    embedding: M | Tensor  # [vocab, hidden]
    layers: tuple[LayerWeights[M], ...]
    norm: Tensor  # [hidden]
    lm_head: M | Tensor  # [vocab, hidden]

    @staticmethod
    def allocate(config: ModelConfig, dtype: torch.dtype, device: torch.device) -> Weights[Tensor]:
        """Weights of the right shapes, not yet filled in."""

        def empty(*shape: int) -> Tensor:
            return torch.empty(shape, dtype=dtype, device=device)

        hidden, intermediate, qkv_size = (
            config.hidden_size,
            config.intermediate_size,
            config.query_size + 2 * config.kv_size,
        )
        layers = tuple(
            LayerWeights(
                attention_norm=empty(hidden),
                qkv=empty(qkv_size, hidden),
                qkv_bias=empty(qkv_size) if config.qkv_bias else None,
                query_norm=empty(config.head_dim) if config.qk_norm else None,
                key_norm=empty(config.head_dim) if config.qk_norm else None,
                output=empty(hidden, config.query_size),
                mlp_norm=empty(hidden),
                gate_up=empty(2 * intermediate, hidden),
                down=empty(hidden, intermediate),
            )
            for _ in range(config.num_layers)
        )
        embedding = empty(config.vocab_size, hidden)
        lm_head = embedding if config.tie_embeddings else empty(config.vocab_size, hidden)
        return Weights(embedding, layers, empty(hidden), lm_head)

    def by_name(self: Weights[Tensor], config: ModelConfig) -> dict[str, Tensor]:
        """Every tensor of a Hugging Face checkpoint -> the view of these weights that it fills."""
        views = {"model.embed_tokens.weight": self.embedding, "model.norm.weight": self.norm}
        if not config.tie_embeddings:
            views["lm_head.weight"] = self.lm_head
        for i_layer, layer in enumerate(self.layers):
            for name, view in _layer_views(layer, config).items():
                views[f"model.layers.{i_layer}.{name}"] = view
        return views

    def in_fp8(self: Weights[Tensor]) -> Weights[Fp8Matrix]:
        """The same model with its layers' matrices in fp8; embedding and language-model head stay as they are."""
        return Weights(self.embedding, tuple(map(_in_fp8, self.layers)), self.norm, self.lm_head)

    def quantised(self: Weights[Tensor]) -> Weights[Int8Matrix]:
        """The same model with 8-bit matrices; norms and biases stay as they are."""
        layers = tuple(
            LayerWeights(
                attention_norm=layer.attention_norm,
                qkv=Int8Matrix.of(layer.qkv),
                qkv_bias=layer.qkv_bias,
                query_norm=layer.query_norm,
                key_norm=layer.key_norm,
                output=Int8Matrix.of(layer.output, spread=False),  # has no outliers to speak of
                mlp_norm=layer.mlp_norm,
                gate_up=Int8Matrix.of(layer.gate_up),
                down=Int8Matrix.of(layer.down),
            )
            for layer in self.layers
        )
        embedding = Int8Matrix.of(self.embedding)
        lm_head = embedding if self.lm_head is self.embedding else Int8Matrix.of(self.lm_head)
        return Weights(embedding, layers, self.norm, lm_head)


def _in_fp8(layer: LayerWeights[Tensor]) -> LayerWeights[Fp8Matrix]:
    return LayerWeights(
        attention_norm=layer.attention_norm,
        qkv=Fp8Matrix.of(layer.qkv),
        qkv_bias=layer.qkv_bias,
        query_norm=layer.query_norm,
        key_norm=layer.key_norm,
        output=Fp8Matrix.of(layer.output),
        mlp_norm=layer.mlp_norm,
        gate_up=Fp8Matrix.of(layer.gate_up),
        down=Fp8Matrix.of(layer.down),
    )


def _layer_views(layer: LayerWeights[Tensor], config: ModelConfig) -> dict[str, Tensor]:
    parts = [config.query_size, config.kv_size, config.kv_size]
    query, key, value = torch.split(layer.qkv, parts)
    gate, up = layer.gate_up.chunk(2)
    views = {
        "input_layernorm.weight": layer.attention_norm,
        "self_attn.q_proj.weight": query,
        "self_attn.k_proj.weight": key,
        "self_attn.v_proj.weight": value,
        "self_attn.o_proj.weight": layer.output,
        "post_attention_layernorm.weight": layer.mlp_norm,
        "mlp.gate_proj.weight": gate,
        "mlp.up_proj.weight": up,
        "mlp.down_proj.weight": layer.down,
    }
    if layer.qkv_bias is not None:
        names = ("self_attn.q_proj.bias", "self_attn.k_proj.bias", "self_attn.v_proj.bias")
        views.update(zip(names, torch.split(layer.qkv_bias, parts), strict=True))
    if layer.query_norm is not None and layer.key_norm is not None:
        views["self_attn.q_norm.weight"] = layer.query_norm
        views["self_attn.k_norm.weight"] = layer.key_norm
    return views
