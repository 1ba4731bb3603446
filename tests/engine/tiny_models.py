"""Tiny random models of every supported architecture, made by transformers, and their GGUF twins."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
import transformers
from torch import Tensor

from engine.cache import KVCache
from engine.inputs import Inputs
from engine.models import Model
from engine.models.gguf_model import LAYER_NAMES, NAMES
from engine.models.native import NativeLlama

VOCAB = 160
BLOCK_SIZE = 4
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10_000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
SIZES = {
    "vocab_size": VOCAB,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
    "initializer_range": 0.15,  # large enough for attention to matter
    "eos_token_id": 2,
}
# Name -> (transformers' class, what sets it apart, its name in a GGUF file).
KINDS: dict[str, tuple[str, dict[str, Any], str]] = {
    "llama": ("Llama", {"tie_word_embeddings": False}, "llama"),
    "llama-tied": ("Llama", {"tie_word_embeddings": True}, "llama"),
    "llama-head-dim": ("Llama", {"head_dim": 24}, "llama"),
    "llama-llama3-rope": ("Llama", {"rope_parameters": LLAMA3}, "llama"),
    "mistral": ("Mistral", {"sliding_window": None, "num_key_value_heads": 4}, "llama"),
    "qwen2": ("Qwen2", {"tie_word_embeddings": True}, "qwen2"),
    "qwen3": ("Qwen3", {"head_dim": 32, "num_key_value_heads": 1}, "qwen3"),
}


def make(kind: str, **options: Any) -> Any:
    """A transformers model in fp32 with every weight random, norms and biases included."""
    torch.manual_seed(sorted(KINDS).index(kind))
    name, special, _ = KINDS[kind]
    config = getattr(transformers, f"{name}Config")(**SIZES | special | options)
    model = getattr(transformers, f"{name}ForCausalLM")(config).eval()
    with torch.no_grad():
        for weight_name, weight in model.named_parameters():
            if weight_name.endswith("norm.weight"):
                weight.uniform_(0.5, 1.5)
            elif weight_name.endswith(".bias"):
                weight.normal_(0, 0.5)
    return model


def expected_logits(model: Any, tokens: list[int]) -> Tensor:
    """Transformers' logits [tokens, vocab]."""
    with torch.no_grad():
        logits: Tensor = model(torch.tensor([tokens])).logits[0]
    return logits


def write_gguf(
    path: Path,
    model: Any,
    architecture: str,
    tensor_type: gguf.GGMLQuantizationType = gguf.GGMLQuantizationType.F32,
    extra: dict[str, Any] | None = None,
) -> None:
    """Write a model as llama.cpp's converter does. `extra` adds or replaces 32-bit whole numbers by key."""
    config = model.config
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    writer.add_key_length(head_dim)
    writer.add_value_length(head_dim)
    writer.add_rope_dimension_count(head_dim)
    writer.add_eos_token_id(config.eos_token_id)
    for key, value in (extra or {}).items():
        writer.add_uint32(key, value)
    if config.rope_parameters["rope_type"] == "llama3":
        factors = llama3_factors(config.rope_parameters, head_dim)
        writer.add_tensor("rope_freqs.weight", factors.numpy())
    for name, values in gguf_tensors(model, architecture).items():
        quantise = values.ndim == 2 and tensor_type != gguf.GGMLQuantizationType.F32
        kind = tensor_type if quantise else gguf.GGMLQuantizationType.F32
        writer.add_tensor(name, gguf.quants.quantize(values, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def gguf_tensors(model: Any, architecture: str) -> dict[str, np.ndarray]:
    """A model's tensors under GGUF's names and, for llama, with rotary pairs side by side."""
    parts = {ours: theirs for theirs, ours in LAYER_NAMES.items()}
    tops = {ours: theirs for theirs, ours in NAMES.items()}
    heads = {"attn_q": model.config.num_attention_heads, "attn_k": model.config.num_key_value_heads}
    found = {}
    for name, weight in model.state_dict().items():
        values = weight.numpy()
        stem, _, kind = name.rpartition(".")
        if not stem.startswith("model.layers."):
            if stem != "lm_head" or not model.config.tie_word_embeddings:
                found[f"{tops[stem]}.{kind}"] = values
            continue
        i_layer, _, part = stem.removeprefix("model.layers.").partition(".")
        if architecture == "llama" and parts[part] in heads:
            # The permutation of llama.cpp's convert_hf_to_gguf.py.
            rows = values.reshape(heads[parts[part]], 2, -1, *values.shape[1:])
            values = rows.swapaxes(1, 2).reshape(values.shape)
        found[f"blk.{i_layer}.{parts[part]}.{kind}"] = values
    return found


def llama3_factors(parameters: dict[str, Any], head_dim: int) -> Tensor:
    """What frequencies are divided by, as llama.cpp's converter computes it."""
    factors = []
    for i_pair in range(head_dim // 2):
        wavelength = 2 * np.pi * parameters["rope_theta"] ** (2 * i_pair / head_dim)
        original, low, high = (
            parameters[name] for name in ("original_max_position_embeddings", "low_freq_factor", "high_freq_factor")
        )
        if wavelength < original / high:
            factors.append(1.0)
        elif wavelength > original / low:
            factors.append(parameters["factor"])
        else:
            smooth = (original / wavelength - low) / (high - low)
            factors.append(1 / ((1 - smooth) / parameters["factor"] + smooth))
    return torch.tensor(factors, dtype=torch.float32)


class Paged:
    """Runs sequences through a model with a paged cache, in slices of any sizes, and collects all logits.

    Each sequence's blocks are spread over the cache, which begins as large garbage, so that a wrong read shows.
    """

    def __init__(
        self,
        model: Model,
        sequences: list[list[int]],
        *,
        block_size: int = BLOCK_SIZE,
        cache_dtype: torch.dtype | None = None,
    ) -> None:
        self.model = model
        self.sequences = sequences
        self.computed = [0] * len(sequences)
        self.logit_rows: Tensor | None = None  # of the next steps; none: all
        self.logits: list[list[Tensor]] = [[] for _ in sequences]
        config = model.config
        most = max(-(-len(tokens) // block_size) for tokens in sequences)
        num_blocks = most * len(sequences) + 1
        self.cache = KVCache(
            config.num_layers,
            num_blocks,
            block_size,
            config.num_kv_heads,
            config.head_dim,
            cache_dtype or (model.dtype if model.dtype != torch.int8 else torch.float32),  # type: ignore[attr-defined]
            torch.device("cpu"),
        )
        if isinstance(model, NativeLlama):
            self.cache.tiles.fill_(0x44)  # 785 as fp32
        else:
            for i_layer in range(config.num_layers):
                for part in self.cache.layer(i_layer):
                    part.fill_(400.0)  # which fp8 can hold
        order = torch.randperm(num_blocks, generator=torch.Generator().manual_seed(1))
        self.tables = order[: most * len(sequences)].reshape(len(sequences), most).int()

    def step(self, sizes: dict[int, int]) -> None:
        """Compute the next sizes[i] tokens of each named sequence in one batch."""
        block_size = self.cache.block_size
        spans = {i: (self.computed[i], self.computed[i] + size) for i, size in sizes.items()}
        positions = [torch.arange(start, stop) for start, stop in spans.values()]
        slots = [
            self.tables[i][place // block_size].long() * block_size + place % block_size
            for i, place in zip(spans, positions, strict=True)
        ]
        inputs = Inputs(
            token_ids=torch.tensor([token for i, span in spans.items() for token in self.sequences[i][slice(*span)]]),
            positions=torch.cat(positions),
            slots=torch.cat(slots),
            query_starts=torch.tensor([0, *torch.tensor(list(sizes.values())).cumsum(0)], dtype=torch.int32),
            context_lengths=torch.tensor([stop for _, stop in spans.values()], dtype=torch.int32),
            block_tables=self.tables[list(spans)],
            logit_rows=torch.arange(sum(sizes.values())) if self.logit_rows is None else self.logit_rows,
        )
        logits = self.model.logits(self.model.forward(inputs, self.cache))
        assert logits.dtype == torch.float32
        owners = torch.repeat_interleave(torch.tensor(list(sizes)), torch.tensor(list(sizes.values())))[
            inputs.logit_rows
        ]
        for i in spans:
            self.logits[i].append(logits[owners == i])
            self.computed[i] = spans[i][1]

    def result(self, i: int) -> Tensor:
        """Logits [tokens, vocab] of a sequence."""
        return torch.cat(self.logits[i])
