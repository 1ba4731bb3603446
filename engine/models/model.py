"""What the engine needs from a model, whatever its family."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

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


@runtime_checkable
class GreedyModel(Protocol):
    """A Model that finds the most probable tokens without writing the logits down."""

    def largest(self, hidden: Tensor, masks: Tensor | None, mask_rows: Tensor | None) -> tuple[Tensor, Tensor]:
        """The largest logit of each row of hidden [R, hidden] and its token, of equals the first: [R] fp32, [R] int64.

        `masks` [N, words] int32 has a bit for every token, set where it may be chosen; `mask_rows` [R] int32 says which
        is whose, -1 where a row has none. Where one token alone may be chosen, any finite number stands for its logit.
        NaN where logits are not numbers, -inf where nothing is allowed.
        """
        ...
