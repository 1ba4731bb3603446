"""What the engine needs from a model, whatever its family."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from engine.cache import KVCache
from engine.inputs import Inputs
from engine.models.config import ModelConfig


class Model(Protocol):
    """A decoder. Stateless: all that it remembers is in the cache that it is given."""

    @property
    def config(self) -> ModelConfig: ...

    def forward(self, inputs: Inputs, cache: KVCache) -> Tensor:
        """Compute the step's tokens, write their keys and values into the cache.

        Returns the hidden states of the logit rows, normed: [R, hidden].
        """
        ...

    def logits(self, hidden: Tensor) -> Tensor:
        """Rows of hidden [R, hidden] -> [R, vocab] fp32."""
        ...
