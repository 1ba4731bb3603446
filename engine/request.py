"""The frozen values that cross the engine's border: a Request goes in, an Output comes out. No torch here."""

from __future__ import annotations

import math
from collections.abc import Hashable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal, NamedTuple

from engine.errors import InvalidRequest
from engine.format import Format


class FinishReason(StrEnum):
    """Why a sequence ended."""

    STOP = "stop"  # end-of-sequence token, stop token, stop string, or a choice was made
    LENGTH = "length"  # max_tokens reached
    CANCELLED = "cancelled"  # aborted by the caller
    ERROR = "error"  # see Output.error


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How tokens are chosen. temperature 0 is greedy.

    Penalties follow the field's conventions: `repetition_penalty` divides positive and multiplies negative logits of
    every token in prompt or output (Keskar et al. 2019); `presence_penalty` and `frequency_penalty` are subtracted for
    tokens of the output (OpenAI API). Order: penalties, temperature, top_k, top_p, min_p.
    """

    temperature: float = 0.0
    top_k: int = 0  # 0: off
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    seed: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    max_tokens: int = 256
    min_tokens: int = 0
    ignore_eos: bool = False
    logprobs: int | None = None  # None: none; 0: the chosen token's; n: the n most probable as well

    def __post_init__(self) -> None:
        for name, low, high in (
            ("temperature", 0.0, 100.0),
            ("top_p", 0.0, 1.0),
            ("min_p", 0.0, 1.0),
            ("repetition_penalty", 0.0, 100.0),
            ("presence_penalty", -2.0, 2.0),
            ("frequency_penalty", -2.0, 2.0),
        ):
            value = getattr(self, name)
            if not (isinstance(value, (int, float)) and math.isfinite(value) and low <= value <= high):
                raise InvalidRequest(name, value, f"must lie between {low:g} and {high:g}")
        for name in ("top_p", "repetition_penalty"):
            if getattr(self, name) == 0:
                raise InvalidRequest(name, 0, "must be greater than 0")
        for name, least in (("top_k", 0), ("max_tokens", 1), ("min_tokens", 0)):
            value = getattr(self, name)
            if not isinstance(value, int) or value < least:
                raise InvalidRequest(name, value, f"must be an integer of at least {least}")
        if self.min_tokens > self.max_tokens:
            raise InvalidRequest("min_tokens", self.min_tokens, f"is more than max_tokens={self.max_tokens}")
        if self.logprobs is not None and not 0 <= self.logprobs <= 100:
            raise InvalidRequest("logprobs", self.logprobs, "must lie between 0 and 100")
        if self.seed is not None and not 0 <= self.seed < 2**63:
            raise InvalidRequest("seed", self.seed, "must lie between 0 and 2^63 - 1")
        if any(not text for text in self.stop):
            raise InvalidRequest("stop", self.stop, "a stop string is empty")

    @property
    def greedy(self) -> bool:
        return self.temperature == 0.0


@dataclass(frozen=True, slots=True)
class Request:
    """One prompt to complete.

    With `choices`, nothing is sampled: the engine computes the exact log-probability of each choice's token sequence
    as the continuation of the prompt, answers with the most probable one, and `sampling` is not read. Choices are
    distinct and non-empty. A choice that is a proper prefix of another should end in an end-of-sequence token, or it
    wins by being shorter. With `choice_margin` (natural logarithm), choices that turn out less probable than the best
    one by more than that are not followed to their ends: their log-probabilities are upper bounds then. Those of the
    best and of all within the margin are exact.

    With `format`, every token is chosen among those that the format allows, and the output ends as soon as it is whole.
    Tokens that the format forces are computed several at a time. `forced` says how: `verify` keeps them only where the
    model, held to the format, chooses the same tokens, so the output is what it would be one token at a time; `commit`
    takes them over as the tokenizer would cut their text, without asking the model, which is cheaper and may give other
    outputs.

    `group` names what the request belongs to (a job): outputs of a group help to guess later ones of it. `owner` names
    whose it is (a tenant): requests of different owners share no prompts in the cache, so that nobody can tell what
    another one asked by what was computed already.
    """

    id: Hashable
    prompt: tuple[int, ...]
    sampling: SamplingParams = field(default_factory=SamplingParams)
    choices: tuple[tuple[int, ...], ...] = ()
    format: Format | None = None
    forced: Literal["verify", "commit"] = "verify"
    group: Hashable = None
    choice_margin: float | None = None
    owner: Hashable = None

    def __post_init__(self) -> None:
        if not self.prompt:
            raise InvalidRequest("prompt", self.prompt, "is empty")
        if self.format is not None:
            self._validate_format()
        elif self.forced != "verify":
            raise InvalidRequest("forced", self.forced, "needs a format")
        if len(set(self.choices)) != len(self.choices) or any(not choice for choice in self.choices):
            raise InvalidRequest("choices", self.choices, "must be distinct and not empty")
        if self.choice_margin is not None and not self.choice_margin >= 0:
            raise InvalidRequest("choice_margin", self.choice_margin, "must be at least 0")

    def _validate_format(self) -> None:
        """Refuse what a format leaves no room for."""
        if self.choices:
            raise InvalidRequest("choices", self.choices, "cannot be combined with a format")
        if self.forced not in ("verify", "commit"):
            raise InvalidRequest("forced", self.forced, "must be verify or commit")
        if self.sampling.min_tokens:
            raise InvalidRequest("min_tokens", self.sampling.min_tokens, "cannot be combined with a format")
        if self.sampling.ignore_eos:
            raise InvalidRequest("ignore_eos", True, "cannot be combined with a format")
        if self.forced == "commit" and self.sampling.logprobs is not None:
            raise InvalidRequest("logprobs", self.sampling.logprobs, "are not known of tokens that are committed")

    @property
    def max_new_tokens(self) -> int:
        """The most tokens that can follow the prompt."""
        return max(map(len, self.choices)) if self.choices else self.sampling.max_tokens


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """A token's log-probability (natural; after penalties and format, before temperature), and the top ones."""

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


class Times(NamedTuple):
    """What a request's time in the engine went to, in seconds."""

    waited: float  # until it was first admitted
    prefill: float  # from there to the end of the step that computed the last of its prompt, and so its first token
    decode: float  # from there to its end


@dataclass(frozen=True, slots=True)
class Output:
    """A finished request. `tokens` holds what was generated, the token that stopped it excluded."""

    id: Hashable
    tokens: tuple[int, ...]
    finish_reason: FinishReason
    num_prompt_tokens: int
    num_cached_tokens: int  # prompt tokens served from the prefix cache at first admission
    num_output_tokens: int  # tokens generated, the stopping token included
    stopped_by: str | int | None = None  # the stop string or token id; text after a stop string is the caller's to cut
    logprobs: tuple[TokenLogprobs, ...] | None = None
    choice_logprobs: tuple[float, ...] | None = None  # in the order of Request.choices
    error: str | None = None
    error_code: str | None = None
    # None: it never ran, or the answer is another request's. No part of what makes two outputs equal.
    times: Times | None = field(default=None, compare=False)
    reused: bool = False  # the answer of an identical request; set by who knows one, never by the engine
