"""EngineConfig: what a user may set. Frozen; every derived size is computed once, where the engine is built."""

from __future__ import annotations

import re
from dataclasses import dataclass

from engine.errors import InvalidRequest

FORMATS = ("auto", "fp32", "bf16", "int8", "fp8")
WEIGHT_ONLY = ("int8_weight_only", "int4_weight_only")


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """Sizes in tokens unless the name says otherwise.

    `cache_bytes` bounds the key/value cache; `num_blocks`, when given, overrules it (tests, benchmarks). With neither
    it takes 1 GiB, on a GPU what is left of `memory_fraction` beside the weights and the largest step.
    """

    # Of the weights: auto, fp32, bf16, int8_weight_only, int4_weight_only; int8 and fp8 (GPU): activations too.
    dtype: str = "fp32"
    kv_dtype: str = "auto"  # of keys and values: auto (as the weights), fp32, bf16, int8 (CPU) or fp8 (GPU)
    device: str = "cpu"  # or cuda, cuda:N; interpret: the GPU's path in Triton's interpreter, for tests
    attention: str = "auto"  # or triton (what auto is on a GPU), sdpa (gathers; for checks), varlen (torch's; GPU)
    deterministic: bool = False  # on a GPU: products that do not depend on what else is computed, to the bit
    block_size: int = 16
    cache_bytes: int | None = None
    memory_fraction: float = 0.9  # of a GPU's memory, for all that the engine needs
    num_blocks: int | None = None
    max_model_len: int | None = None  # None: what the model was made for
    max_sequences: int = 64
    token_budget: int = 1024  # tokens computed per step
    prefix_caching: bool = True
    speculation: bool = True  # guess tokens ahead where that pays; changes no output
    max_draft: int = 16  # tokens guessed at a time
    num_threads: int | None = None  # None: torch's own choice
    tensor_parallel: int = 1  # processes that share one model: GPUs, where it runs on these

    def __post_init__(self) -> None:
        for name, known in (("dtype", (*FORMATS, *WEIGHT_ONLY)), ("kv_dtype", FORMATS)):
            if getattr(self, name) not in known:
                raise InvalidRequest(name, getattr(self, name), f"must be {', '.join(known[:-1])} or {known[-1]}")
        if not re.fullmatch(r"cpu|interpret|cuda(:\d+)?", self.device):
            raise InvalidRequest("device", self.device, "must be cpu, cuda, cuda:N or interpret")
        if self.attention not in ("auto", "triton", "sdpa", "varlen"):
            raise InvalidRequest("attention", self.attention, "must be auto, triton, sdpa or varlen")
        for name in ("block_size", "max_sequences", "token_budget", "max_draft", "tensor_parallel"):
            if getattr(self, name) < 1:
                raise InvalidRequest(name, getattr(self, name), "must be at least 1")
        for name in ("cache_bytes", "num_blocks", "max_model_len", "num_threads"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise InvalidRequest(name, value, "must be at least 1")
        if not 0 < self.memory_fraction <= 1:
            raise InvalidRequest("memory_fraction", self.memory_fraction, "must lie between 0 and 1")
        if self.token_budget < self.max_sequences:
            raise InvalidRequest("token_budget", self.token_budget, f"is less than max_sequences={self.max_sequences}")
