"""A model's weights in codes (kernels.blocks), for PyTorch."""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor

from engine.models.config import ModelConfig
from engine.models.fusion import FusedNorm, Named, fused, in_blocks, plain
from engine.models.layers import LayerWeights, Weights
from kernels.blocks import Blocks
from kernels.native.structures import Norm, Part


def in_codes(config: ModelConfig, tensors: Iterable[Named], bits: int) -> Weights[Blocks]:
    """Weights in codes of `bits` at most, for a CPU: fusion.in_blocks says which."""
    norms: dict[tuple[Norm, int], Tensor] = {}
    matrices: dict[tuple[Part, int], Blocks] = {}
    biases: dict[int, Tensor] = {}
    for each in fused(config, tensors, lambda part, weight: in_blocks(part, weight, bits)):
        if isinstance(each, FusedNorm):
            norms[each.norm, each.i_layer] = each.weight.float()
            continue
        assert isinstance(each.matrix, Blocks)
        matrices[each.part, each.i_layer] = each.matrix
        if each.bias is not None:
            biases[each.i_layer] = plain(each.bias).float()
    layers = tuple(
        LayerWeights(
            attention_norm=norms[Norm.ATTENTION, i],
            qkv=matrices[Part.QKV, i],
            qkv_bias=biases.get(i),
            query_norm=norms.get((Norm.QUERY, i)),
            key_norm=norms.get((Norm.KEY, i)),
            output=matrices[Part.OUTPUT, i],
            mlp_norm=norms[Norm.MLP, i],
            gate_up=matrices[Part.GATE_UP, i],
            down=matrices[Part.DOWN, i],
        )
        for i in range(config.num_layers)
    )
    head = matrices[Part.HEAD, 0]
    return Weights(matrices.get((Part.EMBEDDING, 0), head), layers, norms[Norm.LAST, 0], head)
