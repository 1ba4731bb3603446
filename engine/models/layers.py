"""The weights of a Llama-family model as tensors, fused where one matrix product serves several projections."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic

import torch
from torch import Tensor

from engine.models.config import ModelConfig
from engine.models.matrices import Fp8Matrix, Int8Matrix, M


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
