"""A Hugging Face folder: config.json and safetensors, whole or in shards."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from engine import end_tokens
from engine.errors import ModelError, UnsupportedModel
from engine.fields import Fields
from engine.models.config import Llama3Scaling, ModelConfig
from engine.models.families import HUGGING_FACE
from engine.models.fusion import Named
from engine.models.prequantised import UNREAD, Unpack, matrix_of, unpacker

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
PICKLES = (".bin", ".pt", ".pth", ".ckpt")


def read_config(folder: Path) -> ModelConfig:
    """Read a folder's configuration. Raises ModelError, or UnsupportedModel with the name of what is not supported."""
    fields = Fields.of_json(folder / "config.json")
    architecture = ", ".join(map(str, fields.items("architectures"))) or "of no name"
    family = HUGGING_FACE.get(architecture)
    if family is None:
        raise UnsupportedModel(folder, f"architecture {architecture}; supported are {', '.join(HUGGING_FACE)}")
    _refuse_options(fields)
    hidden_size, num_heads = fields.integer("hidden_size"), fields.integer("num_attention_heads")
    head_dim = fields.integer("head_dim", family.head_dim or hidden_size // num_heads)
    theta, scaling = _rope(fields)
    return ModelConfig(
        architecture=architecture,
        vocab_size=fields.integer("vocab_size"),
        hidden_size=hidden_size,
        num_layers=fields.integer("num_hidden_layers"),
        num_heads=num_heads,
        num_kv_heads=fields.integer("num_key_value_heads", num_heads),
        head_dim=head_dim,
        intermediate_size=fields.integer("intermediate_size"),
        max_position=_max_position(fields, architecture),
        rms_eps=fields.number("rms_norm_eps", 1e-6),
        rope_theta=theta,
        rope_scaling=scaling,
        tie_embeddings=fields.flag("tie_word_embeddings", False),
        qkv_bias=family.qkv_bias,
        qk_norm=family.qk_norm,
        eos_token_ids=end_tokens.of_folder(folder),
    )


def tensors(folder: Path, config: ModelConfig) -> Iterator[Named]:
    """The checkpoint's tensors under their own names, one in memory at a time; quantised ones as prequantised.py says.

    Raises ModelError, and UnsupportedModel for tensors of unknown types.
    """
    unpack = unpacker(Fields.of_json(folder / "config.json"))
    with ExitStack() as stack:
        modules: dict[str, dict[str, Any]] = {}  # by name, then by what follows it: the file
        for path in _files(folder):
            try:
                file = stack.enter_context(safe_open(path, framework="pt"))
            except (OSError, SafetensorError) as error:
                raise ModelError(path, f"cannot be read as safetensors: {error}") from error
            for name in file.keys():  # noqa: SIM118 - a safetensors file is not iterable
                # Old checkpoints store the rotary frequencies, and some a second copy of tied embeddings.
                if name.endswith(".rotary_emb.inv_freq") or (config.tie_embeddings and name == "lm_head.weight"):
                    continue
                stem, _, kind = name.rpartition(".")
                if kind in modules.setdefault(stem, {}):
                    raise ModelError(path, f"tensor {name} is there twice")
                modules[stem][kind] = file
        for stem, files in modules.items():
            parts = {kind: file.get_tensor(f"{stem}.{kind}") for kind, file in files.items()}
            yield from _module(stem, parts, unpack, config, folder)


def _module(
    stem: str, parts: dict[str, Tensor], unpack: Unpack | None, config: ModelConfig, folder: Path
) -> Iterator[Named]:
    """A module's weight and bias."""
    if unpack is not None and not set(parts) <= {"weight", "bias"}:
        parts = {kind: tensor for kind, tensor in parts.items() if kind not in UNREAD}
        yield f"{stem}.weight", matrix_of(stem, parts, unpack, folder)
        # Some write zeros where a model has no bias.
        biased = config.qkv_bias and stem.endswith(("q_proj", "k_proj", "v_proj"))
        parts = {"bias": parts["bias"]} if "bias" in parts and (biased or parts["bias"].any()) else {}
    for kind, tensor in parts.items():
        if tensor.dtype not in (torch.float32, torch.bfloat16, torch.float16):
            raise UnsupportedModel(folder, f"tensor {stem}.{kind} is of type {tensor.dtype}")
        yield f"{stem}.{kind}", tensor


def _files(folder: Path) -> list[Path]:
    if (folder / SINGLE).is_file():
        return [folder / SINGLE]
    if (folder / INDEX).is_file():
        shards = sorted(set(map(str, Fields.of_json(folder / INDEX).nested("weight_map").values.values())))
        for shard in shards:
            if Path(shard).name != shard or not (folder / shard).is_file():
                raise ModelError(folder / INDEX, f"names {shard!r}, which is not in the folder")
        return [folder / shard for shard in shards]
    pickles = sorted(path.name for path in folder.iterdir() if path.suffix in PICKLES)
    if pickles:
        # A pickle runs code of its author's choice when it is read.
        raise UnsupportedModel(folder, f"weights are pickled ({pickles[0]}); only safetensors are read")
    raise ModelError(folder, f"neither {SINGLE} nor {INDEX} is there")


def _refuse_options(fields: Fields) -> None:
    """Raise for what would change the results and is not computed here."""
    unpacker(fields)
    if fields.text("hidden_act", "silu") != "silu":
        raise UnsupportedModel(fields.path, f"hidden_act {fields.text('hidden_act')}")
    for name in ("attention_bias", "mlp_bias"):
        if fields.flag(name, False):
            raise UnsupportedModel(fields.path, f"{name}=true")


def _max_position(fields: Fields, architecture: str) -> int:
    """Positions for which the model is defined and full attention is exact.

    A sliding window is not computed; up to its length it masks nothing, so that is where the model ends here.
    """
    positions = fields.integer("max_position_embeddings", 2048)
    if architecture == "MistralForCausalLM":
        # An absent key means Mistral's own default; an explicit null means no window.
        window = fields.values.get("sliding_window", 4096)
    else:
        window = fields.values.get("sliding_window") if fields.flag("use_sliding_window", False) else None
    return (
        positions
        if window is None
        else min(positions, Fields(fields.path, {"sliding_window": window}).integer("sliding_window"))
    )


def _rope(fields: Fields) -> tuple[float, Llama3Scaling | None]:
    """Base and scaling of the rotary embedding, from the keys of transformers 4 or 5."""
    options = fields.nested("rope_parameters" if fields.has("rope_parameters") else "rope_scaling")
    theta = options.number("rope_theta", fields.number("rope_theta", 10000.0))
    for source in (options, fields):
        if source.number("partial_rotary_factor", 1.0) != 1.0:
            raise UnsupportedModel(fields.path, "partial_rotary_factor other than 1")
    kind = options.text("rope_type", options.text("type", "default"))
    if kind == "default":
        return theta, None
    if kind != "llama3":
        raise UnsupportedModel(fields.path, f"rope scaling {kind}; supported is llama3")
    scaling = Llama3Scaling(
        factor=options.number("factor"),
        low_freq_factor=options.number("low_freq_factor"),
        high_freq_factor=options.number("high_freq_factor"),
        original_max_position=options.integer("original_max_position_embeddings"),
    )
    return theta, scaling
