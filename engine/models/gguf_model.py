"""A model in a GGUF file: its configuration, and its tensors under their Hugging Face names and in that row order."""

from __future__ import annotations

import re
from collections.abc import Iterator

import torch
from torch import Tensor

from engine import end_tokens
from engine.errors import ModelError, UnsupportedModel
from engine.fields import Fields
from engine.gguf_file import GGUFFile
from engine.models.config import ModelConfig
from engine.models.families import GGUF
from engine.models.fusion import Named
from kernels.blocks import Blocks

ROPE_FACTORS = "rope_freqs.weight"
NAMES = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def read_config(file: GGUFFile) -> ModelConfig:
    """Read a file's configuration. Raises ModelError, or UnsupportedModel with the name of what is not supported."""
    architecture = file.fields.text("general.architecture")
    family = GGUF.get(architecture)
    if family is None:
        raise UnsupportedModel(file.path, f"architecture {architecture}; supported are {', '.join(GGUF)}")
    if "token_embd.weight" not in file.places:
        raise ModelError(file.path, "tensor token_embd.weight missing")
    prefix = architecture + "."
    values = {name.removeprefix(prefix): value for name, value in file.fields.values.items() if name.startswith(prefix)}
    fields = Fields(file.path, values)
    hidden_size, num_heads = fields.integer("embedding_length"), fields.integer("attention.head_count")
    head_dim = fields.integer("attention.key_length", hidden_size // num_heads)
    _refuse_options(fields, head_dim)
    positions = fields.integer("context_length")
    return ModelConfig(
        architecture=architecture,
        vocab_size=file.places["token_embd.weight"].shape[0],
        hidden_size=hidden_size,
        num_layers=fields.integer("block_count"),
        num_heads=num_heads,
        num_kv_heads=fields.integer("attention.head_count_kv", num_heads),
        head_dim=head_dim,
        intermediate_size=fields.integer("feed_forward_length"),
        # Full attention is exact up to the length of a sliding window; see hugging_face.py.
        max_position=min(positions, fields.integer("attention.sliding_window", positions)),
        rms_eps=fields.number("attention.layer_norm_rms_epsilon"),
        rope_theta=fields.number("rope.freq_base", 10000.0),
        rope_scaling=tuple(file.tensor(ROPE_FACTORS).tolist()) if ROPE_FACTORS in file.places else None,
        tie_embeddings="output.weight" not in file.places,
        qkv_bias=family.qkv_bias,
        qk_norm=family.qk_norm,
        eos_token_ids=end_tokens.of_gguf(file),
    )


def tensors(file: GGUFFile, config: ModelConfig, *, stored: bool = False) -> Iterator[Named]:
    """The file's tensors as a Hugging Face checkpoint would hold them, one in memory at a time; with `stored` in their
    own codes where GGUFFile.stored has these."""
    heads = {"attn_q": config.num_heads, "attn_k": config.num_kv_heads}
    for name, tensor in file.tensors(stored=stored):
        if name == ROPE_FACTORS:
            continue
        stem, _, kind = name.rpartition(".")
        layer = re.fullmatch(r"blk\.(\d+)\.(\w+)", stem)
        part = layer.group(2) if layer else stem
        known = LAYER_NAMES.get(part) if layer else NAMES.get(part)
        if known is None:
            raise ModelError(file.path, f"tensor {name} is unexpected")
        if part in heads and GGUF[config.architecture].rotary_pairs:
            tensor = _halves(tensor, heads[part])
        yield f"model.layers.{layer.group(1)}.{known}.{kind}" if layer else f"{known}.{kind}", tensor


def _halves(weight: Tensor | Blocks, num_heads: int) -> Tensor | Blocks:
    """Put the rows of each head from ggml's order (pair by pair) into ours (all first members, then all second)."""
    rows = weight.shape[0]
    if rows % (2 * num_heads):
        return weight  # misshapen: `checked` will say so, by name
    order = torch.arange(rows).view(num_heads, -1, 2).transpose(1, 2).flatten()
    return weight.rows(order) if isinstance(weight, Blocks) else weight[order]


def _refuse_options(fields: Fields, head_dim: int) -> None:
    """Raise for what would change the results and is not computed here."""
    scaling = fields.text("rope.scaling.type", "none")
    if scaling != "none":
        raise UnsupportedModel(fields.path, f"rope scaling {scaling}")
    if fields.number("rope.scale_linear", 1.0) != 1.0:
        raise UnsupportedModel(fields.path, f"rope.scale_linear={fields.number('rope.scale_linear')}")
    if fields.has("expert_count") and fields.values["expert_count"] > 0:
        raise UnsupportedModel(fields.path, f"a mixture of {fields.values['expert_count']} experts")
    for name in ("attention.value_length", "rope.dimension_count"):
        if fields.integer(name, head_dim) != head_dim:
            raise UnsupportedModel(fields.path, f"{name}={fields.integer(name)} other than the key's {head_dim}")
