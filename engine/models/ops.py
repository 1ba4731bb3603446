"""Ops: what a Llama computes between its matrix products, in PyTorch or as Triton kernels."""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import Tensor

from engine.cache import KVCache
from engine.inputs import Inputs
from engine.models.config import ModelConfig
from engine.models.matrices import Rows
from kernels import cpu, reference


class Ops(Protocol):
    """Arguments and results are those of kernels.reference, but for the plan of a step, which is the ops' own."""

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor: ...
    def add_rms_norm(self, x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]: ...
    def normed_rows(self, x: Tensor, residual: Tensor | None, weight: Tensor, eps: float) -> tuple[Rows, Tensor]:
        """(the norm of x + residual as its matrix takes it, x + residual). Without a residual the sum is x."""
        ...

    def mixed_rows(self, gate_up: Tensor) -> Rows:
        """silu_and_mul as its matrix takes it."""
        ...

    def rope(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor: ...

    def plan(self, inputs: Inputs, cache: KVCache, config: ModelConfig, dtype: torch.dtype) -> Any:
        """What all layers of a step share. `dtype` is that of the queries."""
        ...

    def attend(self, query: Tensor, key: Tensor, value: Tensor, layer: Layer, plan: Any, scale: float) -> Tensor:
        """Write keys and values [T, Hkv, D] into a layer's cache, then attend: query [T, H, D] -> [T, H, D]."""
        ...


Layer = tuple[Tensor, Tensor]  # a layer's keys and values, as KVCache.layer gives them


class TorchOps:
    """In PyTorch."""

    rms_norm = staticmethod(reference.rms_norm)
    add_rms_norm = staticmethod(reference.add_rms_norm)
    mixed_rows = staticmethod(reference.silu_and_mul)
    rope = staticmethod(reference.rope)

    def normed_rows(self, x: Tensor, residual: Tensor | None, weight: Tensor, eps: float) -> tuple[Rows, Tensor]:
        if residual is None:
            return reference.rms_norm(x, weight, eps), x
        return reference.add_rms_norm(x, residual, weight, eps)

    def plan(self, inputs: Inputs, cache: KVCache, config: ModelConfig, dtype: torch.dtype) -> cpu.AttentionPlan:
        return cpu.AttentionPlan.of(
            inputs.slots,
            inputs.block_tables,
            inputs.query_starts,
            inputs.context_lengths,
            cache.layer(0)[0].shape,
            dtype,
        )

    def attend(
        self, query: Tensor, key: Tensor, value: Tensor, layer: Layer, plan: cpu.AttentionPlan, scale: float
    ) -> Tensor:
        cpu.write_cache(key, value, *layer, plan)
        return cpu.paged_attention(query, key, value, *layer, plan, scale)
