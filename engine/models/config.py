"""ModelConfig: the shape of a model, whatever file it came from."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Llama3Scaling:
    """Llama 3.1's stretching of slow rotary frequencies; kernels.reference.llama3_frequencies gives the meaning."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_position: int


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Sizes are in features, except max_position, which is in tokens."""

    architecture: str  # the name in config.json or in the GGUF file
    vocab_size: int
    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    max_position: int
    rms_eps: float
    rope_theta: float
    # Llama3Scaling, or one divisor per rotary frequency as GGUF files carry them; none: the plain frequencies.
    rope_scaling: Llama3Scaling | tuple[float, ...] | None = None
    tie_embeddings: bool = False
    qkv_bias: bool = False
    qk_norm: bool = False
    eos_token_ids: frozenset[int] = frozenset()

    @property
    def query_size(self) -> int:
        return self.num_heads * self.head_dim

    @property
    def kv_size(self) -> int:
        return self.num_kv_heads * self.head_dim
