"""KVCache: the key and value tensors, sized to memory."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from engine.config import EngineConfig
from engine.errors import OutOfCache

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


class CacheShape(Protocol):
    """What of a model's configuration decides the size of its cache."""

    @property
    def num_layers(self) -> int: ...
    @property
    def num_kv_heads(self) -> int: ...
    @property
    def head_dim(self) -> int: ...


class KVCache:
    """Keys and values of `num_blocks` blocks, in every layer.

    Starts as zeros and holds finite numbers only: attention reads whole blocks and masks what lies beyond a context,
    and a masked NaN would still be a NaN.
    """

    def __init__(
        self,
        num_layers: int,
        num_blocks: int,
        block_size: int,
        num_kv_heads: int,
        head_dim: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self._data = torch.zeros(
            (num_layers, 2, num_blocks, num_kv_heads, block_size, head_dim), dtype=dtype, device=device
        )

    @classmethod
    def fit(cls, shape: CacheShape, config: EngineConfig) -> KVCache:
        """As many blocks as `config.cache_bytes` holds, or `config.num_blocks` where given.

        Raises OutOfCache when that is not even one.
        """
        dtype = DTYPES[config.dtype]
        num_bytes = 2 * shape.num_layers * shape.num_kv_heads * shape.head_dim * config.block_size * dtype.itemsize
        num_blocks = config.num_blocks if config.num_blocks is not None else config.cache_bytes // num_bytes
        if num_blocks < 1:
            raise OutOfCache(f"cache_bytes={config.cache_bytes} is less than one block of {num_bytes} bytes")
        device = torch.device(config.device)
        return cls(shape.num_layers, num_blocks, config.block_size, shape.num_kv_heads, shape.head_dim, dtype, device)

    @property
    def bytes_per_block(self) -> int:
        """Bytes of one block over all layers, keys and values."""
        return self._data[:, :, 0].numel() * self._data.element_size()

    @property
    def device(self) -> torch.device:
        return self._data.device

    def layer(self, i_layer: int) -> tuple[Tensor, Tensor]:
        """Keys and values of a layer, each [num_blocks, num_kv_heads, block_size, head_dim], contiguous, to be written
        in place."""
        return self._data[i_layer, 0], self._data[i_layer, 1]
