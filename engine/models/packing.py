"""From a checkpoint's tensors to a native decoder's matrices, each packed as soon as its last part has come."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import torch
from torch import Tensor

from engine.models.config import ModelConfig
from kernels.native import Decoder, Norm, Part
from kernels.native.decoder import padded_head_dim

NORMS = {
    "input_layernorm": Norm.ATTENTION,
    "post_attention_layernorm": Norm.MLP,
    "self_attn.q_norm": Norm.QUERY,
    "self_attn.k_norm": Norm.KEY,
}
# Parts of the matrix that one product serves, in order.
FUSED = {
    "self_attn.q_proj": (Part.QKV, 0),
    "self_attn.k_proj": (Part.QKV, 1),
    "self_attn.v_proj": (Part.QKV, 2),
    "self_attn.o_proj": (Part.OUTPUT, 0),
    "mlp.gate_proj": (Part.GATE_UP, 0),
    "mlp.up_proj": (Part.GATE_UP, 1),
    "mlp.down_proj": (Part.DOWN, 0),
}


class Key(NamedTuple):
    """A matrix, or its bias, of the decoder."""

    part: Part
    i_layer: int
    kind: str  # weight or bias


def pack(decoder: Decoder, config: ModelConfig, tensors: Iterable[tuple[str, Tensor]]) -> None:
    """Give the decoder every tensor of a complete Hugging Face checkpoint (weights.checked)."""
    waiting: dict[Key, dict[int, Tensor]] = {}
    complete: dict[Key, Tensor] = {}
    for name, tensor in tensors:
        stem, _, kind = name.rpartition(".")
        if stem == "model.norm":
            decoder.set_norm(Norm.LAST, 0, tensor.float().contiguous())
        elif stem in ("model.embed_tokens", "lm_head"):
            part = Part.HEAD if config.tie_embeddings or stem == "lm_head" else Part.EMBEDDING
            decoder.set_matrix(part, 0, tensor.float().contiguous())
        else:
            number, _, module = stem.removeprefix("model.layers.").partition(".")
            if module in NORMS:
                decoder.set_norm(NORMS[module], int(number), tensor.float().contiguous())
                continue
            part, place = FUSED[module]
            key = Key(part, int(number), kind)
            parts = waiting.setdefault(key, {})
            parts[place] = _padded(tensor.float(), part, config)
            if len(parts) == _num_parts(part):
                complete[key] = torch.cat([parts[i] for i in range(len(parts))])
                del waiting[key]
                _set(decoder, config, key, complete)
    assert not waiting
    assert not complete
    decoder.finish()


def _num_parts(part: Part) -> int:
    return sum(own == part for own, _ in FUSED.values())


def _set(decoder: Decoder, config: ModelConfig, key: Key, complete: dict[Key, Tensor]) -> None:
    """Pack the matrix of `key` if its bias, where it has one, is there too."""
    weight, bias = key._replace(kind="weight"), key._replace(kind="bias")
    has_bias = key.part == Part.QKV and config.qkv_bias
    if weight in complete and (bias in complete or not has_bias):
        decoder.set_matrix(key.part, key.i_layer, complete.pop(weight), complete.pop(bias, None))


def _padded(tensor: Tensor, part: Part, config: ModelConfig) -> Tensor:
    """Heads padded with zero features: in the rows of queries, keys and values, in the columns of the output."""
    padding = padded_head_dim(config.head_dim) - config.head_dim
    if padding == 0 or part not in (Part.QKV, Part.OUTPUT):
        return tensor.contiguous()
    if part == Part.OUTPUT:
        heads = tensor.view(tensor.shape[0], -1, config.head_dim)
        return torch.nn.functional.pad(heads, (0, padding)).flatten(1)
    heads = tensor.view(-1, config.head_dim, *tensor.shape[1:])
    return torch.cat((heads, heads.new_zeros(len(heads), padding, *tensor.shape[1:])), dim=1).flatten(0, 1)
