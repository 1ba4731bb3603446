"""ModelRunner: a batch in, logits out."""

from __future__ import annotations

import torch
from torch import Tensor

from engine.batch import Batch
from engine.cache import KVCache
from engine.inputs import Inputs
from engine.models import Model


class ModelRunner:
    """Owns the model and the cache that it writes."""

    def __init__(self, model: Model, cache: KVCache) -> None:
        self._model = model
        self._cache = cache

    @torch.inference_mode()
    def run(self, batch: Batch) -> Tensor:
        """Compute a batch -> logits [R, vocab] fp32, for the last `num_logits` tokens of every slice, in batch order.

        The language-model head runs for these rows only.
        """
        inputs = Inputs.of(batch, self._cache.block_size, self._cache.device)
        hidden = self._model.forward(inputs, self._cache)
        if inputs.logit_rows.shape[0] == 0:
            return hidden.new_empty((0, self._model.config.vocab_size), dtype=torch.float32)
        return self._model.logits(hidden)
