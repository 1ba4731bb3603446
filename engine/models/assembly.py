"""A model's weights in a format of their own, from a checkpoint's tensors: each matrix is made as soon as its last part
has come, so that nothing else of the model is ever in memory as plain numbers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from engine.dtypes import WEIGHT_ONLY_BITS
from engine.models.config import ModelConfig
from engine.models.fusion import FusedMatrix, FusedNorm, Named, Stored, Weight, fused, in_blocks, plain
from engine.models.layers import LayerWeights, Weights
from engine.models.matrices import Fp8Matrix, Int8Matrix, Matrix
from kernels.blocks import Blocks, PackedBlocks
from kernels.native.structures import Norm, Part

ENDS = (Part.EMBEDDING, Part.HEAD)


def assemble(
    config: ModelConfig, tensors: Iterable[Named], format: torch.dtype, between: torch.dtype, device: torch.device
) -> Weights[Any]:
    """For Triton's kernels: the layers' matrices in `format` (dtypes.weight_dtype), all else in `between`.

    What the checkpoint stores in that format stays as it is: fp8, int8 with a scale for every output, codes of few bits
    enough. Raises ValueError for codes in groups that the kernels cannot take.
    """
    bits = WEIGHT_ONLY_BITS.get(format, 0)

    def prepare(part: Part, weight: Stored) -> Weight:
        if part in ENDS or len(weight.shape) == 1:
            return plain(weight).to(device, between)
        if bits:
            return in_blocks(part, weight if isinstance(weight, Blocks) else plain(weight).to(device), bits)
        if format == torch.float8_e4m3fn:
            return weight.to(device) if isinstance(weight, Fp8Matrix) else Fp8Matrix.of(plain(weight).to(device))
        own = Int8Matrix.of_blocks(weight) if isinstance(weight, Blocks) else None
        return Int8Matrix.of(plain(weight).to(device), spread=False) if own is None else own.to(device)

    def finish(each: FusedMatrix) -> Matrix:
        matrix = each.matrix
        return PackedBlocks.of(matrix, device) if isinstance(matrix, Blocks) else matrix

    parts = fused(config, tensors, prepare)
    pairs = ((each, finish(each) if isinstance(each, FusedMatrix) else None) for each in parts)
    return _weights(config, pairs, between)


def in_codes(config: ModelConfig, tensors: Iterable[Named], bits: int) -> Weights[Blocks]:
    """For PyTorch on a CPU, in codes of `bits` at most: fusion.in_blocks says which."""
    parts = fused(config, tensors, lambda part, weight: in_blocks(part, weight, bits))
    pairs = ((each, each.matrix if isinstance(each, FusedMatrix) else None) for each in parts)
    return _weights(config, pairs, torch.float32)


def _weights(
    config: ModelConfig, parts: Iterable[tuple[FusedNorm | FusedMatrix, Any]], dtype: torch.dtype
) -> Weights[Any]:
    """From all norms and matrices, beside each the matrix as it is kept. Norms and biases are in `dtype`."""
    norms: dict[tuple[Norm, int], Tensor] = {}
    matrices: dict[tuple[Part, int], Any] = {}
    biases: dict[int, Tensor] = {}
    for each, matrix in parts:
        if isinstance(each, FusedNorm):
            norms[each.norm, each.i_layer] = each.weight
            continue
        matrices[each.part, each.i_layer] = matrix
        if each.bias is not None:
            biases[each.i_layer] = each.bias.to(dtype)
    head = matrices[Part.HEAD, 0]
    device = head.device if isinstance(head, Tensor) else torch.device("cpu")
    norms = {key: weight.to(device, dtype) for key, weight in norms.items()}
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
    return Weights(matrices.get((Part.EMBEDDING, 0), head), layers, norms[Norm.LAST, 0], head)
