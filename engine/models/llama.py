"""The Llama family: Llama, Mistral, Qwen2 (bias on queries, keys and values) and Qwen3 (norm of queries and keys)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from engine.cache import KVCache
from engine.inputs import Inputs
from engine.models.config import ModelConfig
from engine.models.layers import LayerWeights, Weights
from engine.models.matrices import Fp8Matrix, Int8Matrix, Rows, linear, lookup
from engine.models.ops import Layer, Ops, TorchOps
from engine.models.rope import frequencies
from engine.ranks import Alone, Combine
from kernels.blocks import Blocks, PackedBlocks
from kernels.reference import rope_table

AnyLayer = (
    LayerWeights[Tensor]
    | LayerWeights[Int8Matrix]
    | LayerWeights[Fp8Matrix]
    | LayerWeights[Blocks]
    | LayerWeights[PackedBlocks]
)
AnyWeights = Weights[Tensor] | Weights[Int8Matrix] | Weights[Fp8Matrix] | Weights[Blocks] | Weights[PackedBlocks]


class Llama:
    """A Model (see model.py) of pre-norm layers with rotary, grouped-query attention and a gated MLP."""

    def __init__(
        self,
        config: ModelConfig,
        weights: AnyWeights,
        ops: Ops | None = None,
        combine: Combine | None = None,
    ) -> None:
        """`ops`: those of PyTorch if none are given. `combine`: with the ranks that have the other parts of the layers;
        none: config and weights are the whole model's."""
        self.config = config
        self.weights = weights
        self._ops: Ops = ops or TorchOps()
        self._combine: Combine = combine or Alone()
        self.dtype = torch.int8 if isinstance(weights.embedding, Int8Matrix) else weights.norm.dtype
        self._frequencies = frequencies(config).to(weights.norm.device)
        self._scale = config.head_dim**-0.5

    @torch.no_grad()
    def forward(self, inputs: Inputs, cache: KVCache) -> Tensor:
        """See Model.forward."""
        weights, ops = self.weights, self._ops
        dtype = weights.norm.dtype  # what lies between the products
        rotation = rope_table(inputs.positions, self._frequencies, dtype)
        plan = ops.plan(inputs, cache, self.config, dtype)
        mixed = lookup(inputs.token_ids, weights.embedding)
        residual: Tensor | None = None
        layers: Sequence[AnyLayer] = weights.layers
        for i_layer, layer in enumerate(layers):
            rows, residual = ops.normed_rows(mixed, residual, layer.attention_norm, self.config.rms_eps)
            attended = self._attention(layer, rows, rotation, cache.layer(i_layer), plan)
            rows, residual = ops.normed_rows(attended, residual, layer.mlp_norm, self.config.rms_eps)
            mixed = self._combine.sum(linear(ops.mixed_rows(linear(rows, layer.gate_up)), layer.down))
        assert residual is not None, "a model has layers"
        normed, _ = ops.add_rms_norm(mixed, residual, weights.norm, self.config.rms_eps)
        return normed[inputs.logit_rows]

    @torch.no_grad()
    def logits(self, hidden: Tensor) -> Tensor:
        """See Model.logits."""
        return linear(hidden, self.weights.lm_head).float()

    def _attention(
        self,
        layer: AnyLayer,
        rows: Rows,
        rotation: tuple[Tensor, Tensor],
        layer_cache: Layer,
        plan: Any,
    ) -> Tensor:
        """Attention of rows [T, hidden] -> [T, hidden]; writes this step's keys and values into the layer's cache."""
        config = self.config
        heads = [config.num_heads, config.num_kv_heads]
        qkv = linear(rows, layer.qkv, layer.qkv_bias)
        qkv = qkv.view(qkv.shape[0], -1, config.head_dim)
        query_key, value = torch.split(qkv, [sum(heads), config.num_kv_heads], dim=1)
        if layer.query_norm is not None and layer.key_norm is not None:
            query, key = torch.split(query_key, heads, dim=1)
            query = self._ops.rms_norm(query.contiguous(), layer.query_norm, config.rms_eps)
            key = self._ops.rms_norm(key.contiguous(), layer.key_norm, config.rms_eps)
            query_key = torch.cat((query, key), dim=1)
        query, key = torch.split(self._ops.rope(query_key, *rotation), heads, dim=1)
        attended = self._ops.attend(query, key, value, layer_cache, plan, self._scale)
        return self._combine.sum(linear(attended.flatten(1), layer.output))
