"""The Llama family: Llama, Mistral, Qwen2 (bias on queries, keys and values) and Qwen3 (norm of queries and keys)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from engine.cache import KVCache
from engine.inputs import Inputs
from engine.models.config import ModelConfig
from engine.models.layers import Int8Matrix, LayerWeights, Weights, linear, lookup
from engine.models.rope import frequencies
from kernels.cpu import AttentionPlan, paged_attention, write_cache
from kernels.reference import (
    add_rms_norm,
    rms_norm,
    rope,
    rope_table,
    silu_and_mul,
)


class Llama:
    """A Model (see model.py) of pre-norm layers with rotary, grouped-query attention and a gated MLP."""

    def __init__(self, config: ModelConfig, weights: Weights[Tensor] | Weights[Int8Matrix]) -> None:
        self.config = config
        self.weights = weights
        self.dtype = weights.embedding.dtype if isinstance(weights.embedding, Tensor) else torch.int8
        self._frequencies = frequencies(config).to(weights.norm.device)
        self._scale = config.head_dim**-0.5

    @torch.no_grad()
    def forward(self, inputs: Inputs, cache: KVCache) -> Tensor:
        """See Model.forward."""
        weights = self.weights
        dtype = weights.norm.dtype  # what lies between the products
        rotation = rope_table(inputs.positions, self._frequencies, dtype)
        plan = AttentionPlan.of(
            inputs.slots,
            inputs.block_tables,
            inputs.query_starts,
            inputs.context_lengths,
            cache.layer(0)[0].shape,
            dtype,
        )
        residual = lookup(inputs.token_ids, weights.embedding)
        normed = rms_norm(residual, weights.layers[0].attention_norm, self.config.rms_eps)
        next_norms = [layer.attention_norm for layer in weights.layers[1:]] + [weights.norm]
        layers: Sequence[LayerWeights[Tensor] | LayerWeights[Int8Matrix]] = weights.layers
        for i_layer, (layer, next_norm) in enumerate(zip(layers, next_norms, strict=True)):
            attended = self._attention(layer, normed, rotation, cache.layer(i_layer), plan)
            normed, residual = add_rms_norm(attended, residual, layer.mlp_norm, self.config.rms_eps)
            mixed = linear(silu_and_mul(linear(normed, layer.gate_up)), layer.down)
            normed, residual = add_rms_norm(mixed, residual, next_norm, self.config.rms_eps)
        return normed[inputs.logit_rows]

    @torch.no_grad()
    def logits(self, hidden: Tensor) -> Tensor:
        """See Model.logits."""
        return linear(hidden, self.weights.lm_head).float()

    def _attention(
        self,
        layer: LayerWeights[Tensor] | LayerWeights[Int8Matrix],
        x: Tensor,
        rotation: tuple[Tensor, Tensor],
        layer_cache: tuple[Tensor, Tensor],
        plan: AttentionPlan,
    ) -> Tensor:
        """Attention of x [T, hidden] -> [T, hidden]; writes this step's keys and values into the layer's cache."""
        config = self.config
        heads = [config.num_heads, config.num_kv_heads]
        qkv = linear(x, layer.qkv, layer.qkv_bias).view(x.shape[0], -1, config.head_dim)
        query_key, value = torch.split(qkv, [sum(heads), config.num_kv_heads], dim=1)
        if layer.query_norm is not None and layer.key_norm is not None:
            query, key = torch.split(query_key, heads, dim=1)
            query = rms_norm(query, layer.query_norm, config.rms_eps)
            key = rms_norm(key, layer.key_norm, config.rms_eps)
            query_key = torch.cat((query, key), dim=1)
        query, key = torch.split(rope(query_key, *rotation), heads, dim=1)
        write_cache(key, value, *layer_cache, plan)
        attended = paged_attention(query, key, value, *layer_cache, plan, self._scale)
        return linear(attended.flatten(1), layer.output)
