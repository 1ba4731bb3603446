"""From a checkpoint's tensors to a native decoder's matrices, each packed as soon as its last part has come."""

from __future__ import annotations

from collections.abc import Iterable

import torch
import torch.nn.functional as F
from torch import Tensor

from engine.models.config import ModelConfig
from engine.models.fusion import FusedNorm, Named, Stored, fused, in_blocks, plain
from kernels.blocks import Blocks
from kernels.native import Decoder, Part
from kernels.native.decoder import padded_head_dim
from kernels.quantised import spread_weights


def pack(decoder: Decoder, config: ModelConfig, tensors: Iterable[Named], *, spread: bool, bits: int = 0) -> None:
    """Give the decoder every tensor of a complete Hugging Face checkpoint (weights.checked).

    With `spread` the matrices are transformed by kernels.quantised.spread_weights, as Decoder says. With `bits` they
    are kept in codes of that many at most (fusion.in_blocks).
    """

    def prepare(part: Part, weight: Stored) -> Tensor | Blocks:
        own = in_blocks(part, weight, bits) if bits else plain(weight)
        return _padded(own if isinstance(own, Blocks) else plain(own).float(), part, config)

    for each in fused(config, tensors, prepare):
        if isinstance(each, FusedNorm):
            decoder.set_norm(each.norm, each.i_layer, each.weight.float().contiguous())
        elif isinstance(each.matrix, Blocks):
            decoder.set_blocks(each.part, each.i_layer, each.matrix, each.bias)
        else:
            matrix = plain(each.matrix)
            matrix = spread_weights(matrix) if spread and each.part != Part.OUTPUT else matrix
            decoder.set_matrix(each.part, each.i_layer, matrix.contiguous(), each.bias)
    decoder.finish()


def _padded(weight: Tensor | Blocks, part: Part, config: ModelConfig) -> Tensor | Blocks:
    """Heads padded with zero features: in the rows of queries, keys and values, in the columns of the output."""
    padding = padded_head_dim(config.head_dim) - config.head_dim
    if padding == 0 or part not in (Part.QKV, Part.OUTPUT):
        return weight
    if part == Part.OUTPUT:
        if isinstance(weight, Blocks):
            return weight.padded(config.head_dim, config.head_dim + padding)
        heads = weight.reshape(len(weight), -1, config.head_dim)
        return F.pad(heads, (0, padding)).flatten(1)
    if isinstance(weight, Blocks):
        return weight.mapped(lambda values: _padded_rows(values, config.head_dim, padding))
    return _padded_rows(weight, config.head_dim, padding)


def _padded_rows(values: Tensor, head_dim: int, padding: int) -> Tensor:
    heads = values.reshape(-1, head_dim, *values.shape[1:])
    return torch.cat((heads, heads.new_zeros(len(heads), padding, *values.shape[1:])), dim=1).flatten(0, 1)
