"""From a checkpoint's tensors to the matrices that a model computes with: several of the one are one of the other."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor

from engine.models.config import ModelConfig
from engine.models.matrices import Fp8Matrix, Int8Matrix
from kernels.blocks import Blocks
from kernels.native.structures import Norm, Part

NORMS = {
    "input_layernorm": Norm.ATTENTION,
    "post_attention_layernorm": Norm.MLP,
    "self_attn.q_norm": Norm.QUERY,
    "self_attn.k_norm": Norm.KEY,
}
# The modules whose rows follow each other in a matrix.
MODULES = {
    Part.QKV: ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    Part.OUTPUT: ("self_attn.o_proj",),
    Part.GATE_UP: ("mlp.gate_proj", "mlp.up_proj"),
    Part.DOWN: ("mlp.down_proj",),
}
PART_OF = {module: part for part, modules in MODULES.items() for module in modules}

Stored = Tensor | Blocks | Fp8Matrix  # of a checkpoint: numbers, or what they are stored as
Weight = Stored | Int8Matrix
Named = tuple[str, Stored]


@dataclass(frozen=True, slots=True)
class FusedNorm:
    norm: Norm
    i_layer: int
    weight: Tensor


@dataclass(frozen=True, slots=True)
class FusedMatrix:
    part: Part
    i_layer: int
    matrix: Weight
    bias: Tensor | None


def fused(
    config: ModelConfig, tensors: Iterable[Named], prepare: Callable[[Part, Stored], Weight]
) -> Iterator[FusedNorm | FusedMatrix]:
    """Every tensor of a complete Hugging Face checkpoint (weights.checked), each matrix as soon as its last part has
    come. `prepare` is called with every part of a matrix and of a bias before they are joined.
    """
    waiting: dict[tuple[int, Part], dict[str, Weight]] = {}
    for name, tensor in tensors:
        stem, _, kind = name.rpartition(".")
        if stem == "model.norm":
            yield FusedNorm(Norm.LAST, 0, plain(tensor))
        elif stem in ("model.embed_tokens", "lm_head"):
            part = Part.HEAD if config.tie_embeddings or stem == "lm_head" else Part.EMBEDDING
            yield FusedMatrix(part, 0, prepare(part, tensor), None)
        else:
            number, _, module = stem.removeprefix("model.layers.").partition(".")
            if module in NORMS:
                yield FusedNorm(NORMS[module], int(number), plain(tensor))
                continue
            part = PART_OF[module]
            parts = waiting.setdefault((int(number), part), {})
            parts[f"{module}.{kind}"] = prepare(part, tensor)
            kinds = ("weight", "bias") if part == Part.QKV and config.qkv_bias else ("weight",)
            if len(parts) == len(MODULES[part]) * len(kinds):
                matrix, *bias = (join([parts[f"{own}.{kind}"] for own in MODULES[part]]) for kind in kinds)
                yield FusedMatrix(part, int(number), matrix, plain(bias[0]) if bias else None)
                del waiting[int(number), part]
    assert not waiting


def plain(weight: Weight) -> Tensor:
    """As numbers: fp32 where they were quantised."""
    assert not isinstance(weight, Int8Matrix), "made to be multiplied with"
    return weight if isinstance(weight, Tensor) else weight.dequantised()


def in_blocks(part: Part, weight: Stored, bits: int) -> Tensor | Blocks:
    """A matrix in codes of `bits` at most, those of embedding and head in 8; what is stored so already stays as it is.

    Anything but a matrix stays what it is.
    """
    most = 8 if part in (Part.EMBEDDING, Part.HEAD) else bits
    if isinstance(weight, Blocks) and weight.bits <= most:
        return weight
    values = plain(weight)
    return Blocks.of(values, most) if values.ndim == 2 else values


def join(parts: Sequence[Weight]) -> Weight:
    """One below the other, all in one format."""
    (kind,) = {type(part) for part in parts}
    joined: Weight = torch.cat(list[Any](parts)) if kind is Tensor else cast(Any, kind).cat(parts)
    return joined
