"""From a checkpoint's tensors to a native decoder's matrices, each packed as soon as its last part has come."""

from __future__ import annotations

from collections.abc import Iterable

import torch
import torch.nn.functional as F
from torch import Tensor

from engine.models.config import ModelConfig
from kernels.native import Decoder, Norm, Part
from kernels.native.decoder import padded_head_dim
from kernels.quantised import spread_weights

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


def pack(decoder: Decoder, config: ModelConfig, tensors: Iterable[tuple[str, Tensor]], *, spread: bool) -> None:
    """Give the decoder every tensor of a complete Hugging Face checkpoint (weights.checked).

    With `spread` the matrices are transformed by kernels.quantised.spread_weights, as Decoder says.
    """

    def set_matrix(part: Part, i_layer: int, matrix: Tensor, bias: Tensor | None = None) -> None:
        if spread and part != Part.OUTPUT:
            matrix = spread_weights(matrix)
        decoder.set_matrix(part, i_layer, matrix.contiguous(), bias)

    waiting: dict[tuple[int, Part], dict[str, Tensor]] = {}
    for name, tensor in tensors:
        stem, _, kind = name.rpartition(".")
        values = tensor.float()
        if stem == "model.norm":
            decoder.set_norm(Norm.LAST, 0, values.contiguous())
        elif stem in ("model.embed_tokens", "lm_head"):
            set_matrix(Part.HEAD if config.tie_embeddings or stem == "lm_head" else Part.EMBEDDING, 0, values)
        else:
            number, _, module = stem.removeprefix("model.layers.").partition(".")
            if module in NORMS:
                decoder.set_norm(NORMS[module], int(number), values.contiguous())
                continue
            part = PART_OF[module]
            parts = waiting.setdefault((int(number), part), {})
            parts[f"{module}.{kind}"] = _padded(values, part, config)
            kinds = ("weight", "bias") if part == Part.QKV and config.qkv_bias else ("weight",)
            if len(parts) == len(MODULES[part]) * len(kinds):
                matrix, *bias = (torch.cat([parts[f"{own}.{kind}"] for own in MODULES[part]]) for kind in kinds)
                set_matrix(part, int(number), matrix, *bias)
                del waiting[int(number), part]
    assert not waiting
    decoder.finish()


def _padded(tensor: Tensor, part: Part, config: ModelConfig) -> Tensor:
    """Heads padded with zero features: in the rows of queries, keys and values, in the columns of the output."""
    padding = padded_head_dim(config.head_dim) - config.head_dim
    if padding == 0 or part not in (Part.QKV, Part.OUTPUT):
        return tensor
    if part == Part.OUTPUT:
        heads = tensor.reshape(len(tensor), -1, config.head_dim)
        return F.pad(heads, (0, padding)).flatten(1)
    heads = tensor.reshape(-1, config.head_dim, *tensor.shape[1:])
    return torch.cat((heads, heads.new_zeros(len(heads), padding, *tensor.shape[1:])), dim=1).flatten(0, 1)
