"""Rows: an input row becomes a Request, an Output becomes the values of an output row."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace

import jinja2

from db.sampling import SamplingSpec
from db.specs import JobSpec, OnLong
from engine.errors import EngineError
from engine.format import Format
from engine.request import FinishReason, Output, Request, SamplingParams
from engine.tokenizer import Tokenizer
from worker.chunks import BROKEN
from worker.formats import row_formats, value_of
from worker.recipes import Answer, AnswerRefused, Message, Recipe, Row, RowRefused

# Engine error code -> row error code; any other is engine_error.
ROW_CODES = {
    "request_too_long": "too_long",
    "unsupported_format": "unsupported_format",
    "grammar_error": "grammar_error",
    "invalid_logits": "invalid_logits",
}


@dataclass(frozen=True, slots=True)
class Prompt:
    tokens: tuple[int, ...]
    truncated_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Asking:
    """What the engine is asked for a row: one request, or several whose outputs make one result, in this order.

    A request's id is the row's index, or that and which of all the row's requests it is.
    """

    requests: tuple[Request, ...]
    truncated_tokens: int = 0
    format: Format | None = None

    @property
    def num_prompt(self) -> int:
        """Tokens read for these requests, as the row's `prompt_tokens` counts them: several answers to one prompt read
        it once."""
        return len(self.requests[0].prompt)

    @property
    def too_long(self) -> bool:
        """Whether the row's text did not fit one prompt."""
        return self.truncated_tokens > 0


@dataclass(frozen=True, slots=True)
class Result:
    """What an output row says beside the kept columns. `values` has `output`, `raw_output` and the recipe's own."""

    values: dict[str, object]
    finish_reason: str
    error: tuple[str, str] | None = None  # code and message
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    truncated_tokens: int = 0
    logprobs: str | None = None


def refused(error: RowRefused) -> Result:
    """The output row of an input row that never reached the engine."""
    return Result({}, FinishReason.ERROR.value, (error.code, error.message))


def poisonous() -> Result:
    """The output row of an input row that ended the engine or its process whenever it was computed."""
    message = "computing this row ended the engine or its process twice with no other row beside it"
    return Result({}, FinishReason.ERROR.value, ("engine_crash", message))


class RowMaker:
    """Makes the requests and results of one job with one model. Sizes in tokens.

    `group` names the job to the engine, which drafts from what the same job has written before; `owner` its tenant, who
    shares no cache with others.
    """

    def __init__(
        self,
        spec: JobSpec,
        recipe: Recipe,
        tokenizer: Tokenizer,
        *,
        max_model_len: int,
        max_prompt_bytes: int,
        group: Hashable,
        owner: Hashable = None,
    ) -> None:
        self._recipe = recipe
        self._tokenizer = tokenizer
        self._sampling = sampling_params(spec.sampling, recipe.default_max_tokens)
        self._seed = spec.sampling.seed
        self._group = group
        self._owner = owner
        self.formats = row_formats(spec)
        self._forced = "verify" if spec.structure is None else spec.structure.forced
        self._keep_raw = spec.structure is not None and spec.structure.keep_raw
        self._on_long: OnLong = spec.on_long
        self._max_prompt_bytes = max_prompt_bytes
        answer = max(map(len, recipe.choices)) if recipe.choices else self._sampling.max_tokens
        self.max_prompt_tokens = max_model_len - answer

    def text(self, row: Row) -> str:
        """The row's own text, checked. Raises RowRefused."""
        text = self._recipe.text(row)
        size = len(text.encode())
        if size > self._max_prompt_bytes:
            raise RowRefused("text_too_large", f"the text has {size} bytes; the limit is {self._max_prompt_bytes}")
        return text

    def beginning(self, row: Row, text: str) -> str:
        """How the row's prompt begins, as far as the rows of a job differ in it; `text` is its own."""
        return self._recipe.beginning(row, text)

    def asking(self, index: int, row: Row, text: str) -> Asking:
        """What to ask the engine for the job's row `index`, whose own text is `text`. Raises RowRefused."""
        prompt = self.prompt(row, text)
        format = None if self.formats is None else self.formats.of(row)
        return Asking((self.ask(index, prompt.tokens, format),), prompt.truncated_tokens, format)

    def answer(self, asking: Asking, outputs: Sequence[Output]) -> Result | Asking:
        """What becomes of a row's outputs, in the order of its requests: its result, or what is to be asked next."""
        (output,) = outputs
        return self.result(output, asking.truncated_tokens, asking.format)

    def ask(self, id: int | tuple[int, int], tokens: tuple[int, ...], format: Format | None = None) -> Request:
        """`id`: see Asking."""
        sampling = self._sampling
        if self._seed is not None and not sampling.greedy:
            # One seed for all rows would give them all the same stream of random numbers.
            digest = hashlib.blake2b(f"{self._seed}:{id}".encode(), digest_size=8).digest()
            sampling = replace(sampling, seed=int.from_bytes(digest) >> 1)
        choices, margin = self._recipe.choices, self._recipe.choice_margin
        return Request(id, tokens, sampling, choices, format, self._forced, self._group, margin, self._owner)

    def prompt(self, row: Row, text: str) -> Prompt:
        """The prompt's tokens, cut as the job's `on_long` says. Raises RowRefused: too_long, invalid_messages."""
        tokens = self._render(row, text)
        if len(tokens) <= self.max_prompt_tokens:
            return Prompt(tokens)
        if self._on_long in ("error", "map_reduce"):  # the latter cuts nothing: worker.map_reduce
            raise self._too_long(len(tokens))
        ids = self._tokenizer.encode(text)
        # Tokens at the seams may merge differently once the text is cut, so what fits is found by trying.
        keep = len(ids) - (len(tokens) - self.max_prompt_tokens)
        while keep > 0:
            shorter = self._render(row, self._cut(ids, keep))
            if len(shorter) <= self.max_prompt_tokens:
                return Prompt(shorter, len(ids) - keep)
            keep -= len(shorter) - self.max_prompt_tokens
        raise self._too_long(len(tokens))

    def _too_long(self, num_tokens: int) -> RowRefused:
        return RowRefused("too_long", f"the prompt has {num_tokens} tokens; there is room for {self.max_prompt_tokens}")

    def _cut(self, ids: Sequence[int], keep: int) -> str:
        decode = self._tokenizer.decode
        if self._on_long == "truncate_head":
            return decode(ids[len(ids) - keep :]).lstrip(BROKEN)
        if self._on_long == "truncate_tail":
            return decode(ids[:keep]).rstrip(BROKEN)
        front = (keep + 1) // 2
        back = ids[len(ids) - (keep - front) :]
        return decode(ids[:front]).rstrip(BROKEN) + decode(back).lstrip(BROKEN)

    def _render(self, row: Row, text: str) -> tuple[int, ...]:
        return self._encode(self._recipe.messages(row, text))

    def _encode(self, messages: Sequence[Message]) -> tuple[int, ...]:
        try:
            return prompt_tokens(self._tokenizer, messages)
        except (jinja2.TemplateError, EngineError) as error:
            raise RowRefused("invalid_messages", f"the model's chat template refuses them: {error}") from error

    def result(self, output: Output, truncated_tokens: int = 0, format: Format | None = None) -> Result:
        """What becomes of an output; `format` is the one that its request had."""
        counts = (output.num_prompt_tokens, output.num_cached_tokens, output.num_output_tokens, truncated_tokens)
        if output.finish_reason not in (FinishReason.STOP, FinishReason.LENGTH):
            code = ROW_CODES.get(output.error_code or "", "engine_error")
            error = (code, output.error or f"the request ended as {output.finish_reason}")
            return Result({}, FinishReason.ERROR.value, error, *counts)
        text = self._tokenizer.decode(output.tokens)
        if isinstance(output.stopped_by, str):
            text = text.partition(output.stopped_by)[0]
        raw: dict[str, object] = {"raw_output": text} if self._keep_raw else {}
        reason, logprobs = output.finish_reason.value, self._logprobs(output)
        try:
            value = None if format is None else value_of(format, text, output.finish_reason)
            values = self._recipe.read(Answer(text, value, output.choice_logprobs))
        except AnswerRefused as refusal:
            return Result(raw, reason, (refusal.code, refusal.message), *counts, logprobs)
        return Result({**values, **raw}, reason, None, *counts, logprobs)

    def _logprobs(self, output: Output) -> str | None:
        """JSON: one object per generated token with its text, id and log-probability, and the most probable ones."""
        if output.logprobs is None:
            return None

        def entry(token: int, logprob: float) -> dict[str, object]:
            return {"token": self._tokenizer.decode([token]), "id": token, "logprob": logprob}

        entries = [
            {**entry(item.token, item.logprob), "top": [entry(token, logprob) for token, logprob in item.top]}
            for item in output.logprobs
        ]
        return json.dumps(entries, ensure_ascii=False)


def sampling_params(spec: SamplingSpec, default_max_tokens: int) -> SamplingParams:
    values = spec.model_dump()
    if spec.max_tokens is None:
        values["max_tokens"] = max(default_max_tokens, spec.min_tokens)
    return SamplingParams(**values)


def prompt_tokens(tokenizer: Tokenizer, messages: Sequence[Message]) -> tuple[int, ...]:
    """The tokens of a conversation up to where the answer begins; a model without a chat template gets plain text."""
    if tokenizer.has_chat_template:
        return tuple(tokenizer.encode_chat(messages))
    tokens = tokenizer.encode("\n\n".join(message["content"] for message in messages) + "\n\n")
    start = tokenizer.bos_token_id
    return tuple(tokens) if start is None else (start, *tokens)
