"""How tokens are chosen, as a job says it; engine.SamplingParams computes it."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, model_validator

from db.spec_fields import Spec

TokenId = Annotated[int, Field(ge=0, lt=2**31)]


class SamplingSpec(Spec):
    """Sampling as a client writes it; engine.SamplingParams gives the meaning. None: the recipe's own default."""

    temperature: float = Field(
        default=0.0, ge=0, le=100, description="Divides the logits before a token is drawn; 0: always the likeliest."
    )
    top_k: int = Field(
        default=0, ge=0, lt=2**31, description="Draw among so many of the likeliest tokens; 0: among all."
    )
    top_p: float = Field(
        default=1.0, gt=0, le=1, description="Draw among the likeliest tokens that together have this probability."
    )
    min_p: float = Field(
        default=0.0, ge=0, le=1, description="Leave out tokens with less than this part of the likeliest's probability."
    )
    repetition_penalty: float = Field(
        default=1.0, gt=0, le=100, description="Divides positive, multiplies negative logits of tokens read or written."
    )
    presence_penalty: float = Field(
        default=0.0, ge=-2, le=2, description="Taken off the logit of every token that was written already."
    )
    frequency_penalty: float = Field(
        default=0.0, ge=-2, le=2, description="Taken off the logit of a token for each time that it was written."
    )
    seed: int | None = Field(default=None, ge=0, lt=2**63, description="Makes drawn tokens repeatable, row by row.")
    stop: tuple[Annotated[str, Field(min_length=1)], ...] = Field(
        default=(), description="Texts that end an answer; they are not part of it."
    )
    stop_token_ids: tuple[TokenId, ...] = Field(default=(), description="Tokens that end an answer.")
    max_tokens: int | None = Field(
        default=None, ge=1, lt=2**31, description="Most tokens of an answer; none: the recipe's own."
    )
    min_tokens: int = Field(
        default=0, ge=0, lt=2**31, description="An answer does not end before it has so many tokens."
    )
    ignore_eos: bool = Field(default=False, description="Write on until `max_tokens`, whatever the model says.")
    logprobs: int | None = Field(default=None, ge=0, le=100, description="Adds the column `logprobs` (JSON text).")

    @model_validator(mode="after")
    def _ordered(self) -> SamplingSpec:
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise ValueError(f"min_tokens={self.min_tokens} is more than max_tokens={self.max_tokens}")
        return self
