"""GpuOps: a Llama's ops as Triton kernels. Importing this imports Triton."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from engine.cache import KVCache
from engine.inputs import Inputs
from engine.models.config import ModelConfig
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
    silu_and_mul = staticmethod(activation.silu_and_mul)
    rope = staticmethod(rope.rope)

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
