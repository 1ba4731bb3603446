"""ModelRunner: a batch in, logits out, or the most probable tokens alone."""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import Tensor

from engine.batch import Batch
from engine.cache import KVCache
from engine.grammar.masks import RowMasks
from engine.inputs import Inputs
from engine.models import GreedyModel, Model
from engine.step import Step
from kernels.sampling import most_probable


class Runner(Protocol):
    """See ModelRunner, which defines it."""

    def free_memory(self) -> None: ...
    def check(self) -> None: ...
    def prepare(self, batch: Batch) -> Any: ...
    def prepare_step(self, step: Step) -> Any: ...
    def run(self, prepared: Any) -> Tensor: ...
    def logits(self, hidden: Tensor, masks: RowMasks | None = None) -> Tensor: ...
    def largest(self, hidden: Tensor, masks: RowMasks | None = None) -> tuple[Tensor, Tensor]: ...


class ModelRunner:
    """Owns the model and the cache that it writes."""

    def __init__(self, model: Model, cache: KVCache) -> None:
        self._model = model
        self._cache = cache

    def free_memory(self) -> None:
        """Let go of what can be made again."""

    def check(self) -> None:
        """Raise what makes numbers that were read from the device worthless."""

    def prepare(self, batch: Batch) -> Any:
        """Copy what the batch begins with, and make what `run` computes it from. The batch has at least one slice."""
        return self.prepare_step(Step.of(batch))

    @torch.inference_mode()
    def prepare_step(self, step: Step) -> Any:
        """The same for a batch in numbers."""
        self._cache.copy(step.copies)
        return Inputs.of_step(step, self._cache.block_size, self._cache.device)

    @torch.inference_mode()
    def run(self, prepared: Any) -> Tensor:
        """Compute a batch -> hidden states [R, hidden] of the last `num_logits` tokens of every slice, in batch order.

        The language-model head runs for these rows only.
        """
        return self._model.forward(prepared, self._cache)

    @torch.inference_mode()
    def logits(self, hidden: Tensor, masks: RowMasks | None = None) -> Tensor:
        """Hidden states [R, hidden] -> logits [R, vocab] fp32, -inf where the masks forbid a token."""
        if hidden.shape[0] == 0:
            return hidden.new_empty((0, self._model.config.vocab_size), dtype=torch.float32)
        logits = self._model.logits(hidden)
        if masks is not None:
            masks.apply(logits)
        return logits

    @torch.inference_mode()
    def largest(self, hidden: Tensor, masks: RowMasks | None = None) -> tuple[Tensor, Tensor]:
        """The largest logit of each row and its token: see GreedyModel.largest."""
        if hidden.shape[0] and isinstance(self._model, GreedyModel):
            if masks is None:
                return self._model.largest(hidden, None, None)
            return self._model.largest(hidden, masks.on(hidden.device), masks.of_rows(hidden.shape[0], hidden.device))
        return most_probable(self.logits(hidden, masks))
