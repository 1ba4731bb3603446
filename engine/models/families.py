"""What sets the members of the Llama family apart."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Family:
    """One architecture."""

    qkv_bias: bool = False
    qk_norm: bool = False
    head_dim: int | None = None  # where config.json names none; none: hidden_size / num_heads
    rotary_pairs: bool = False  # GGUF stores query and key rows with the rotary halves interleaved


# By `architectures` of config.json.
HUGGING_FACE = {
    "LlamaForCausalLM": Family(),
    "MistralForCausalLM": Family(),
    "Qwen2ForCausalLM": Family(qkv_bias=True),
    "Qwen3ForCausalLM": Family(qk_norm=True, head_dim=128),
}

# By `general.architecture` of a GGUF file. Mistral calls itself llama there.
GGUF = {
    "llama": Family(rotary_pairs=True),
    "qwen2": Family(qkv_bias=True),
    "qwen3": Family(qk_norm=True),
}
