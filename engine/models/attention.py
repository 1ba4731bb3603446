"""Other ways to attend than the ops' own: torch's, in their places."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from engine.cache import KVCache
from engine.devices import uses_kernels
from engine.errors import InvalidRequest
from engine.inputs import Inputs
from engine.models.config import ModelConfig
from engine.models.ops import Layer, Ops
from kernels import reference
from kernels.torch_attention import sdpa_attention, varlen_attention, varlen_reason

EAGER = ("sdpa", "varlen")  # need numbers of a step on the host, so that steps are neither padded nor made graphs


class Attention(Protocol):
    """See Ops, for both."""

    def plan(self, inputs: Inputs, cache: KVCache, config: ModelConfig, dtype: torch.dtype) -> Any: ...
    def attend(self, query: Tensor, key: Tensor, value: Tensor, layer: Layer, plan: Any, scale: float) -> Tensor: ...


def check_attention(name: str, device: str, kv_dtype: torch.dtype) -> None:
    """Raises InvalidRequest where attention of that name cannot be had."""
    if name == "triton" and not uses_kernels(device):
        raise InvalidRequest("attention", name, "needs a GPU")
    if name in EAGER and kv_dtype.itemsize < 2:
        text = f"cannot read keys and values in {str(kv_dtype).removeprefix('torch.')}: set kv_dtype to bf16 or fp32"
        raise InvalidRequest("attention", name, text)
    if name == "varlen":
        reason = "needs a GPU" if not device.startswith("cuda") else varlen_reason()
        if reason is not None:
            raise InvalidRequest("attention", name, reason)


def with_attention(ops: Ops, name: str) -> Ops:
    """The ops, attending as named; `auto` and `triton` are their own way."""
    if name not in EAGER:
        return ops
    return _Attending(ops, SdpaAttention() if name == "sdpa" else VarlenAttention())


class _Attending:
    """Ops with another attention."""

    def __init__(self, ops: Ops, attention: Attention) -> None:
        self.rms_norm = ops.rms_norm
        self.add_rms_norm = ops.add_rms_norm
        self.normed_rows = ops.normed_rows
        self.mixed_rows = ops.mixed_rows
        self.rope = ops.rope
        self.plan = attention.plan
        self.attend = attention.attend


@dataclass(frozen=True, slots=True)
class SdpaPlan:
    slots: Tensor
    block_tables: Tensor
    query_starts: list[int]
    context_lengths: list[int]


class SdpaAttention:
    def plan(self, inputs: Inputs, cache: KVCache, config: ModelConfig, dtype: torch.dtype) -> SdpaPlan:
        starts, contexts = inputs.query_starts.tolist(), inputs.context_lengths.tolist()
        return SdpaPlan(inputs.slots, inputs.block_tables, starts, contexts)

    def attend(self, query: Tensor, key: Tensor, value: Tensor, layer: Layer, plan: SdpaPlan, scale: float) -> Tensor:
        reference.write_cache(key, value, *layer, plan.slots)
        return sdpa_attention(query, *layer, plan.block_tables, plan.query_starts, plan.context_lengths, scale)


@dataclass(frozen=True, slots=True)
class VarlenPlan:
    inputs: Inputs
    longest: tuple[int, int]


class VarlenAttention:
    def plan(self, inputs: Inputs, cache: KVCache, config: ModelConfig, dtype: torch.dtype) -> VarlenPlan:
        longest = (int(inputs.query_starts.diff().max()), int(inputs.context_lengths.max()))
        return VarlenPlan(inputs, longest)

    def attend(self, query: Tensor, key: Tensor, value: Tensor, layer: Layer, plan: VarlenPlan, scale: float) -> Tensor:
        inputs = plan.inputs
        reference.write_cache(key, value, *layer, inputs.slots)
        slices = (inputs.block_tables, inputs.query_starts, inputs.context_lengths)
        return varlen_attention(query.contiguous(), *layer, *slices, plan.longest, scale)
