"""GpuOps: a Llama's ops as Triton kernels. Importing this imports Triton."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from engine.cache import KVCache
from engine.inputs import Inputs
from engine.models.config import ModelConfig
from engine.models.matrices import QuantisedRows, Rows
from engine.models.ops import Layer
from kernels.gpu import activation, norm, rope
from kernels.gpu.attention import AttentionPlan, bounds, paged_attention
from kernels.gpu.cache import write_cache


@dataclass(frozen=True, slots=True)
class GpuPlan:
    attention: AttentionPlan
    scales: tuple[Tensor, Tensor] | None  # of an fp8 cache


class GpuOps:
    """As Triton kernels. Nothing here waits for the device where `inputs.work` is given."""

    rms_norm = staticmethod(norm.rms_norm)
    add_rms_norm = staticmethod(norm.add_rms_norm)
    rope = staticmethod(rope.rope)

    def __init__(self, rows: torch.dtype | None = None) -> None:
        """`rows`: float8_e4m3fn or int8 where the layers' matrices are, so that rows are quantised where they come
        from."""
        self._rows = rows

    def normed_rows(self, x: Tensor, residual: Tensor | None, weight: Tensor, eps: float) -> tuple[Rows, Tensor]:
        if self._rows is not None:
            values, scales, total = norm.add_rms_norm_quantised(x, residual, weight, eps, self._rows)
            return QuantisedRows(values, scales, x.dtype), total
        if residual is None:
            return norm.rms_norm(x, weight, eps), x
        return norm.add_rms_norm(x, residual, weight, eps)

    def mixed_rows(self, gate_up: Tensor) -> Rows:
        if self._rows is not None:
            values, scales = activation.silu_and_mul_quantised(gate_up, self._rows)
            return QuantisedRows(values, scales, gate_up.dtype)
        return activation.silu_and_mul(gate_up)

    def plan(self, inputs: Inputs, cache: KVCache, config: ModelConfig, dtype: torch.dtype) -> GpuPlan:
        work = inputs.work
        if work is None:
            counts, contexts = inputs.query_starts.diff().cpu().numpy(), inputs.context_lengths.cpu().numpy()
            work = bounds(counts, contexts, config.num_heads // config.num_kv_heads)
        attention = AttentionPlan.of(
            inputs.slots,
            inputs.block_tables,
            inputs.query_starts,
            inputs.context_lengths,
            num_heads=config.num_heads,
            num_kv_heads=config.num_kv_heads,
            head_dim=config.head_dim,
            most_items=work[0],
            most_tiles=work[1],
        )
        scales = None
        if cache.dtype == torch.float8_e4m3fn:
            # e4m3 keeps its three bits from 2^-6 to 448, far beyond keys and values: nothing has to be measured.
            ones = torch.ones(config.num_kv_heads, dtype=torch.float32, device=cache.device)
            scales = (ones, ones)
        return GpuPlan(attention, scales)

    def attend(self, query: Tensor, key: Tensor, value: Tensor, layer: Layer, plan: GpuPlan, scale: float) -> Tensor:
        write_cache(key, value, *layer, plan.attention.slots, plan.scales)
        return paged_attention(query, *layer, plan.attention, scale, plan.scales)
