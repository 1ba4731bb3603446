"""RooflineCost: a step's time from what it computes and moves, at the rates of a device. No torch here.

Layers' products, attention and the language-model head run one after the other; each takes as long as the slower of its
arithmetic and its memory (Williams, Waterman and Patterson 2009). With tensor parallelism each device has its part of
all three, and the sums of the layers' outputs cross the links twice a layer.
"""

from __future__ import annotations

from dataclasses import dataclass

from engine.config import EngineConfig
from engine.errors import InvalidRequest, OutOfCache
from engine.simulation.architecture import BYTES, Architecture
from engine.simulation.devices import HOST_PER_SEQUENCE, MEMORY, DeviceProfile
from engine.work import Work

KV_FORMATS = ("fp32", "bf16", "int8", "fp8")
LIMITS = ("weights bandwidth", "compute", "KV bandwidth", "attention compute", "links", "host")


@dataclass(frozen=True, slots=True)
class RooflineCost:
    """`efficiency`: the share of this roofline that an engine reaches in the end."""

    architecture: Architecture
    device: DeviceProfile
    dtype: str = "bf16"
    kv_dtype: str = "bf16"
    tensor_parallel: int = 1
    efficiency: float = 1.0

    def __post_init__(self) -> None:
        """Raises InvalidRequest for what the device or the split cannot do."""
        if self.dtype not in BYTES:
            raise InvalidRequest("dtype", self.dtype, f"must be one of {', '.join(BYTES)}")
        self.device.rate(self.dtype)
        if self.kv_dtype not in KV_FORMATS:
            raise InvalidRequest("kv_dtype", self.kv_dtype, f"must be one of {', '.join(KV_FORMATS)}")
        if self.tensor_parallel < 1 or self.architecture.num_kv_heads % self.tensor_parallel:
            heads = self.architecture.num_kv_heads
            raise InvalidRequest("tensor_parallel", self.tensor_parallel, f"does not divide {heads} KV heads")
        if not 0 < self.efficiency <= 1:
            raise InvalidRequest("efficiency", self.efficiency, "must lie between 0 and 1")

    def seconds(self, work: Work, steps: int = 1) -> float:
        parts = self.parts(work, steps)
        host = parts.pop("host")
        return sum(parts.values()) / self.efficiency + host

    def parts(self, work: Work, steps: int = 1) -> dict[str, float]:
        """Seconds by what binds (LIMITS): the device's at full efficiency, and the host's as far as they do not lie
        beside these. A step is planned while the one before is computed; with several devices, after it."""
        shape, ranks, bandwidth = self.architecture, self.tensor_parallel, self.device.bandwidth * MEMORY
        found = dict.fromkeys(LIMITS, 0.0)
        products = (2.0 * shape.matrix_parameters * work.tokens, steps * shape.matrix_parameters * BYTES[self.dtype])
        head_bytes = steps * shape.head_parameters * max(BYTES[self.dtype], 2.0)
        head = (2.0 * shape.head_parameters * work.rows, head_bytes if work.rows else 0.0)
        for (operations, moved), dtype in ((products, self.dtype), (head, "bf16")):
            arithmetic, memory = operations / ranks / self.device.rate(dtype), moved / ranks / bandwidth
            found["compute" if arithmetic > memory else "weights bandwidth"] += max(arithmetic, memory)
        operations = 4.0 * shape.num_layers * shape.num_heads * shape.head_dim * work.attended
        moved = (work.context + work.tokens) * shape.kv_bytes_per_token(self.kv_dtype)
        arithmetic, memory = operations / ranks / self.device.rate("bf16"), moved / ranks / bandwidth
        found["attention compute" if arithmetic > memory else "KV bandwidth"] += max(arithmetic, memory)
        if ranks > 1:
            sums = 2 * shape.num_layers * work.tokens * shape.hidden_size * BYTES["bf16"]
            found["links"] = 2 * (ranks - 1) / ranks * sums / self.device.link
        hidden = sum(found.values()) / self.efficiency if ranks == 1 else 0.0
        found["host"] = max(HOST_PER_SEQUENCE * work.sequences - hidden, 0.0)
        return found

    def num_blocks(self, config: EngineConfig) -> int:
        """How many blocks of the cache fit beside the weights and the largest step, over all devices of the model.

        Raises OutOfCache where nothing is left.
        """
        shape, ranks = self.architecture, self.tensor_parallel
        weights = shape.weight_bytes(self.dtype) / ranks
        features = 6 * shape.hidden_size + 2 * shape.intermediate_size / ranks
        step = config.token_budget * features * BYTES["bf16"] + config.max_sequences * shape.vocab_size * BYTES["fp32"]
        left = config.memory_fraction * self.device.memory - weights - step
        blocks = int(left // (config.block_size * shape.kv_bytes_per_token(self.kv_dtype) / ranks))
        if blocks < 1:
            needed, there = (weights + step) / 1e9, config.memory_fraction * self.device.memory / 1e9
            raise OutOfCache(
                f"weights and a step take {needed:.1f} GB of each device, of {there:.1f} that may be used: "
                "take a smaller dtype, a higher tensor_parallel or another device"
            )
        return blocks
