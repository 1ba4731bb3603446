"""KVCache: the keys and values, sized to memory."""

from __future__ import annotations

import mmap
from collections.abc import Sequence
from contextlib import suppress
from typing import Protocol

import torch
from torch import Tensor

from engine.config import EngineConfig
from engine.devices import torch_device
from engine.dtypes import cache_dtype
from engine.errors import OutOfCache
from kernels.native.decoder import cache_bytes, copy_blocks

DEFAULT_BYTES = 1 << 30


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

    A model reads and writes it either as tensors (`layer`) or as tiles (`tiles`), never as both: the first use decides
    how the memory is laid out. Starts as zeros and holds finite numbers only: attention reads whole blocks and masks
    what lies beyond a context, and a masked NaN would still be a NaN.
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
        self.dtype = dtype
        self.device = device
        self._shape = (num_layers, num_kv_heads, head_dim)
        self._tensors: Tensor | None = None
        self._tiles: Tensor | None = None

    @classmethod
    def fit(cls, shape: CacheShape, config: EngineConfig) -> KVCache:
        """As many blocks as `config.cache_bytes` (none: DEFAULT_BYTES) holds, or `config.num_blocks` where given.

        Raises OutOfCache when that is not even one.
        """
        dtype = cache_dtype(config)
        num_bytes = _bytes_per_block(config.block_size, shape.num_layers, shape.num_kv_heads, shape.head_dim, dtype)
        given = DEFAULT_BYTES if config.cache_bytes is None else config.cache_bytes
        num_blocks = config.num_blocks if config.num_blocks is not None else given // num_bytes
        if num_blocks < 1:
            raise OutOfCache(f"cache_bytes={given} is less than one block of {num_bytes} bytes")
        device = torch_device(config.device)
        return cls(shape.num_layers, num_blocks, config.block_size, shape.num_kv_heads, shape.head_dim, dtype, device)

    @property
    def bytes_per_block(self) -> int:
        """Bytes of one block over all layers, keys and values."""
        return _bytes_per_block(self.block_size, *self._shape, self.dtype)

    def layer(self, i_layer: int) -> tuple[Tensor, Tensor]:
        """Keys and values of a layer, each [num_blocks, num_kv_heads, block_size, head_dim], contiguous, to be written
        in place. Not for int8."""
        if self._tensors is None:
            assert self._tiles is None, "the cache holds tiles"
            assert self.dtype.is_floating_point, "int8 keys and values are held as tiles alone"
            num_layers, num_kv_heads, head_dim = self._shape
            self._tensors = torch.zeros(
                (num_layers, 2, self.num_blocks, num_kv_heads, self.block_size, head_dim),
                dtype=self.dtype,
                device=self.device,
            )
        return self._tensors[i_layer, 0], self._tensors[i_layer, 1]

    def copy(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Copy whole blocks in every layer, (from, to) one after the other."""
        if self._tensors is not None:
            for source, target in pairs:
                self._tensors[:, :, target] = self._tensors[:, :, source]
        elif self._tiles is not None and pairs:
            _, num_kv_heads, head_dim = self._shape
            copy_blocks(self._tiles, pairs, self.block_size, num_kv_heads, head_dim, self.dtype)

    @property
    def tiles(self) -> Tensor:
        """The cache as native code keeps it: [num_layers, bytes] uint8, to be written in place."""
        if self._tiles is None:
            assert self._tensors is None, "the cache holds tensors"
            num_layers, num_kv_heads, head_dim = self._shape
            num_bytes = cache_bytes(self.num_blocks * self.block_size, num_kv_heads, head_dim, self.dtype)
            self._tiles = _zero_bytes(num_layers * num_bytes).view(num_layers, num_bytes)
        return self._tiles


def _zero_bytes(count: int) -> Tensor:
    """In huge pages where the system has them, as attention reads from all over; all there from the beginning, so that
    no step waits for a page."""
    memory = mmap.mmap(-1, count, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with suppress(AttributeError, OSError):
        memory.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(memory, dtype=torch.uint8).zero_()


def _bytes_per_block(block_size: int, num_layers: int, num_kv_heads: int, head_dim: int, dtype: torch.dtype) -> int:
    """Two numbers for every feature and, in int8, a scale for every token, head, key and value."""
    per_head = head_dim * dtype.itemsize + (4 if dtype == torch.int8 else 0)
    return 2 * num_layers * num_kv_heads * block_size * per_head
