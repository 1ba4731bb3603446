"""The Llama family as native code for CPUs: the same Model as llama.py, computed by kernels.native."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from engine.cache import KVCache
from engine.dtypes import WEIGHT_ONLY_BITS
from engine.inputs import Inputs
from engine.models.config import ModelConfig
from engine.models.fusion import Named
from engine.models.packing import pack
from engine.models.rope import RopeTable
from kernels.native import Decoder


class NativeLlama:
    """A Model (see model.py). A row's result does not depend on the rows beside it, to the bit."""

    def __init__(self, config: ModelConfig, decoder: Decoder, dtype: torch.dtype) -> None:
        self.config = config
        self.dtype = dtype
        self._decoder = decoder
        self._rope = RopeTable(config)

    @classmethod
    def of(cls, config: ModelConfig, tensors: Iterable[Named], dtype: torch.dtype) -> NativeLlama:
        """Pack the checkpoint's tensors, one matrix in memory at a time. `dtype` is dtypes.weight_dtype's.

        Raises kernels.native.NoLibrary.
        """
        bits = WEIGHT_ONLY_BITS.get(dtype, 0)
        dtype = torch.float32 if bits else dtype
        decoder = Decoder(
            dtype,
            vocab_size=config.vocab_size,
            hidden_size=config.hidden_size,
            num_layers=config.num_layers,
            num_heads=config.num_heads,
            num_kv_heads=config.num_kv_heads,
            head_dim=config.head_dim,
            intermediate_size=config.intermediate_size,
            eps=config.rms_eps,
            spread=dtype == torch.int8,
        )
        pack(decoder, config, tensors, spread=dtype == torch.int8, bits=bits)
        return cls(config, decoder, dtype)

    @torch.no_grad()
    def forward(self, inputs: Inputs, cache: KVCache) -> Tensor:
        """See Model.forward."""
        cosines, sines = self._rope.up_to(int(inputs.context_lengths.max()))
        return self._decoder.forward(
            token_ids=inputs.token_ids,
            positions=inputs.positions,
            slots=inputs.slots,
            query_starts=inputs.query_starts,
            context_lengths=inputs.context_lengths,
            block_tables=inputs.block_tables,
            logit_rows=inputs.logit_rows,
            cosines=cosines,
            sines=sines,
            cache=cache.tiles,
            cache_dtype=cache.dtype,
            block_size=cache.block_size,
        )

    @torch.no_grad()
    def logits(self, hidden: Tensor) -> Tensor:
        """See Model.logits."""
        return self._decoder.logits(hidden)

    @torch.no_grad()
    def largest(self, hidden: Tensor, masks: Tensor | None, mask_rows: Tensor | None) -> tuple[Tensor, Tensor]:
        """See GreedyModel.largest."""
        return self._decoder.largest(hidden, masks, mask_rows)
