"""Decoder: a model's weights, packed, and its steps."""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Sequence

import torch
from torch import Tensor

from kernels.blocks import Blocks
from kernels.native.library import library
from kernels.native.structures import Copies, Format, Norm, Part, Shape, Step, WeightBlocks

FORMATS = {torch.float32: Format.FP32, torch.bfloat16: Format.BF16, torch.int8: Format.INT8}
TILE = 16  # slots of the cache that lie together; see src/tiles.h
HEAD_PADDING = 32  # src/shape.h


def padded_head_dim(head_dim: int) -> int:
    """Features of a head as the native code keeps it: the rest are zeros."""
    return -(-head_dim // HEAD_PADDING) * HEAD_PADDING


def cache_bytes(num_slots: int, num_kv_heads: int, head_dim: int, dtype: torch.dtype) -> int:
    """Bytes of one layer's cache of `num_slots` tokens; int8 has a scale for every token, head, key and value."""
    scale = 4 if dtype == torch.int8 else 0
    per_slot = 2 * num_kv_heads * (padded_head_dim(head_dim) * dtype.itemsize + scale)
    return -(-num_slots // TILE) * TILE * per_slot


def copy_blocks(
    cache: Tensor,
    pairs: Sequence[tuple[int, int]],
    block_size: int,
    num_kv_heads: int,
    head_dim: int,
    dtype: torch.dtype,
) -> None:
    """Copy blocks of a cache [layers, bytes] uint8 of this dtype in every layer, (from, to) one after the other."""
    table = torch.tensor(pairs, dtype=torch.int32)
    sizes = (cache.shape[0], num_kv_heads, padded_head_dim(head_dim), block_size, FORMATS[dtype], len(pairs))
    library().nightmill_copy_blocks(ctypes.byref(Copies(*sizes, _pointer(table), _pointer(cache), cache.stride(0))))


class Decoder:
    """Matrices are given as fp32 and kept packed in the decoder's format. Not thread-safe.

    Heads are padded: `head_dim` of the shape is the true one, but the matrices' heads have padded_head_dim features.
    With `spread` all matrices but the output's expect rows transformed by kernels.quantised.spread.
    """

    def __init__(
        self,
        dtype: torch.dtype,
        *,
        vocab_size: int,
        hidden_size: int,
        num_layers: int,
        num_heads: int,
        num_kv_heads: int,
        head_dim: int,
        intermediate_size: int,
        eps: float,
        spread: bool = False,
    ) -> None:
        """Raises NoLibrary."""
        self._library = library()
        self._shape = Shape(
            vocab_size,
            hidden_size,
            num_layers,
            num_heads,
            num_kv_heads,
            head_dim,
            intermediate_size,
            FORMATS[dtype],
            spread,
            eps,
        )
        self._handle = self._library.nightmill_create(ctypes.byref(self._shape))
        if self._handle is None:
            raise MemoryError("no memory for a decoder")
        weakref.finalize(self, self._library.nightmill_destroy, self._handle)

    def set_matrix(self, part: Part, i_layer: int, matrix: Tensor, bias: Tensor | None = None) -> None:
        """Pack `matrix` [outputs, inputs] fp32 (and keep `bias` [outputs] fp32), replacing what was there."""
        outputs, inputs = matrix.shape
        _check(
            self._library.nightmill_set_matrix(
                self._handle, part, i_layer, _pointer(matrix), outputs, inputs, None if bias is None else _pointer(bias)
            )
        )

    def set_blocks(self, part: Part, i_layer: int, blocks: Blocks, bias: Tensor | None = None) -> None:
        """As set_matrix, of a matrix that is kept in its own codes; for a decoder of fp32."""
        assert self._shape.format == Format.FP32, "codes are expanded to fp32"
        parts = (blocks.codes, blocks.scales, blocks.minimums)
        given = WeightBlocks(*map(_pointer, parts), *blocks.shape, min(blocks.group, blocks.shape[1]), blocks.bits)
        own_bias = None if bias is None else _pointer(bias)
        _check(self._library.nightmill_set_blocks(self._handle, part, i_layer, ctypes.byref(given), own_bias))

    def set_norm(self, norm: Norm, i_layer: int, weight: Tensor) -> None:
        """Keep a norm's weight [features] fp32."""
        _check(self._library.nightmill_set_norm(self._handle, norm, i_layer, _pointer(weight), weight.shape[0]))

    def finish(self) -> None:
        """All weights are there."""
        _check(self._library.nightmill_finish(self._handle))

    def forward(
        self,
        *,
        token_ids: Tensor,
        positions: Tensor,
        slots: Tensor,
        query_starts: Tensor,
        context_lengths: Tensor,
        block_tables: Tensor,
        logit_rows: Tensor,
        cosines: Tensor,
        sines: Tensor,
        cache: Tensor,
        cache_dtype: torch.dtype,
        block_size: int,
    ) -> Tensor:
        """Compute a step -> normed hidden states [R, hidden] fp32 of the rows `logit_rows` (ascending).

        The index tensors are those of engine.inputs; `cosines` and `sines` [positions, head_dim / 2] fp32 reach to the
        largest position; `cache` [layers, bytes] uint8 with cache_bytes(...) bytes a layer is written in place.
        """
        hidden = torch.empty(logit_rows.shape[0], self._shape.hidden_size)
        step = Step(
            token_ids.shape[0],
            context_lengths.shape[0],
            block_tables.shape[1],
            logit_rows.shape[0],
            torch.get_num_threads(),
            block_size,
            FORMATS[cache_dtype],
            0,
            *map(_pointer, (token_ids, positions, slots, query_starts, context_lengths, block_tables, logit_rows)),
            *map(_pointer, (cosines, sines, cache)),
            cache.stride(0),
            hidden.data_ptr(),
        )
        _check(self._library.nightmill_forward(self._handle, ctypes.byref(step)))
        return hidden

    def logits(self, hidden: Tensor) -> Tensor:
        """Rows of hidden [R, hidden] fp32 -> [R, vocab] fp32."""
        rows = hidden.shape[0]
        out = torch.empty(rows, self._shape.vocab_size)
        arguments = (_pointer(hidden), rows, torch.get_num_threads(), out.data_ptr())
        _check(self._library.nightmill_logits(self._handle, *arguments))
        return out

    def largest(
        self, hidden: Tensor, masks: Tensor | None = None, mask_rows: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """The largest logit of each row of hidden [R, hidden] fp32 and its token, of equals the first: [R] fp32 and
        [R] int64.

        `masks` [N, words] int32 holds a bit for every token, set where it may be chosen; `mask_rows` [R] int32 says
        which is whose, -1 where a row has none. Where one token alone may be chosen its logit is not computed but 0.
        NaN where a row of hidden is not of numbers, and -inf where nothing is allowed.
        """
        rows = hidden.shape[0]
        most, tokens = torch.empty(rows), torch.empty(rows, dtype=torch.int64)
        under = (None, None) if masks is None or mask_rows is None else (_pointer(masks), _pointer(mask_rows))
        arguments = (_pointer(hidden), rows, *under, torch.get_num_threads(), most.data_ptr(), tokens.data_ptr())
        _check(self._library.nightmill_largest(self._handle, *arguments))
        return most, tokens


def _pointer(tensor: Tensor) -> int:
    assert tensor.is_contiguous(), "native code reads dense tensors"
    return tensor.data_ptr()


def _check(status: int) -> None:
    if status != 0:
        raise MemoryError("no memory for native code's working buffers")
