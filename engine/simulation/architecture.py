"""Architecture: the shape of a model, as far as it decides what its steps cost. No torch here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from engine.errors import InvalidRequest

BYTES = {"fp32": 4.0, "bf16": 2.0, "int8": 1.0, "fp8": 1.0, "int8_weight_only": 1.0, "int4_weight_only": 0.5}


class Shape(Protocol):
    """What of engine.models.config.ModelConfig is read here."""

    @property
    def vocab_size(self) -> int: ...
    @property
    def hidden_size(self) -> int: ...
    @property
    def num_layers(self) -> int: ...
    @property
    def num_heads(self) -> int: ...
    @property
    def num_kv_heads(self) -> int: ...
    @property
    def head_dim(self) -> int: ...
    @property
    def intermediate_size(self) -> int: ...
    @property
    def max_position(self) -> int: ...
    @property
    def tie_embeddings(self) -> bool: ...


@dataclass(frozen=True, slots=True)
class Architecture:
    """A dense decoder with grouped-query attention and a gated MLP: the family that the engine computes."""

    num_layers: int
    hidden_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    vocab_size: int
    max_position: int
    tie_embeddings: bool = False

    @classmethod
    def of(cls, shape: Shape) -> Architecture:
        return cls(
            shape.num_layers, shape.hidden_size, shape.num_heads, shape.num_kv_heads, shape.head_dim,
            shape.intermediate_size, shape.vocab_size, shape.max_position, shape.tie_embeddings,
        )  # fmt: skip

    @classmethod
    def named(cls, name: str) -> Architecture:
        """A public model's shape, from its config.json. Raises InvalidRequest, which lists the known names."""
        if name not in ARCHITECTURES:
            raise InvalidRequest("model", name, f"is none of the known shapes: {', '.join(ARCHITECTURES)}")
        return ARCHITECTURES[name]

    @property
    def matrix_parameters(self) -> int:
        """Of all layers: query, key, value, output; gate, up, down."""
        heads = (2 * self.num_heads + 2 * self.num_kv_heads) * self.head_dim
        return self.num_layers * self.hidden_size * (heads + 3 * self.intermediate_size)

    @property
    def head_parameters(self) -> int:
        return self.hidden_size * self.vocab_size

    def weight_bytes(self, dtype: str) -> float:
        """Layers in a number format; embedding and language-model head stay in bf16 where the format is smaller."""
        ends = self.head_parameters * (1 if self.tie_embeddings else 2) * max(BYTES[dtype], 2.0)
        return self.matrix_parameters * BYTES[dtype] + ends

    def kv_bytes_per_token(self, kv_dtype: str) -> float:
        """2 x layers x KV heads x head size x bytes."""
        return 2 * self.num_layers * self.num_kv_heads * self.head_dim * BYTES[kv_dtype]


# Layers, hidden size, heads, KV heads, head size, intermediate size, vocabulary, positions, tied embeddings: from each
# model's public config.json.
ARCHITECTURES = {
    "llama-3-8b": Architecture(32, 4096, 32, 8, 128, 14336, 128256, 8192),
    "llama-3.1-8b": Architecture(32, 4096, 32, 8, 128, 14336, 128256, 131072),
    "llama-3-70b": Architecture(80, 8192, 64, 8, 128, 28672, 128256, 8192),
    "llama-3.1-70b": Architecture(80, 8192, 64, 8, 128, 28672, 128256, 131072),
    "llama-3.2-1b": Architecture(16, 2048, 32, 8, 64, 8192, 128256, 131072, True),
    "llama-3.2-3b": Architecture(28, 3072, 24, 8, 128, 8192, 128256, 131072, True),
    "mistral-7b": Architecture(32, 4096, 32, 8, 128, 14336, 32768, 32768),
    "qwen2.5-0.5b": Architecture(24, 896, 14, 2, 64, 4864, 151936, 32768, True),
    "qwen2.5-7b": Architecture(28, 3584, 28, 4, 128, 18944, 152064, 32768),
    "qwen2.5-32b": Architecture(64, 5120, 40, 8, 128, 27648, 152064, 32768),
    "qwen2.5-72b": Architecture(80, 8192, 64, 8, 128, 29568, 152064, 32768),
    "smollm2-135m": Architecture(30, 576, 9, 3, 64, 1536, 49152, 8192, True),
}
