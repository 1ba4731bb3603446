"""Rows of the recipe openai: a request body becomes one engine request per choice, and the outputs its choices."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from db.openai_body import Body, ChatBody, ObjectFormat
from db.specs import JobSpec
from engine.format import Format, FormatKind
from engine.request import FinishReason, Output, Request, SamplingParams
from engine.tokenizer import Tokenizer
from worker.formats import value_of
from worker.recipes import AnswerRefused, Row, RowRefused
from worker.recipes.openai import OpenAIRecipe, conversation
from worker.rows import Asking, Result, RowMaker

SEEDS = 2**63


class OpenAIRowMaker(RowMaker):
    """A RowMaker whose rows say themselves how they are sampled."""

    def __init__(
        self,
        spec: JobSpec,
        recipe: OpenAIRecipe,
        tokenizer: Tokenizer,
        *,
        max_model_len: int,
        max_prompt_bytes: int,
        group: str,
        owner: str | None = None,
    ) -> None:
        limits = {"max_model_len": max_model_len, "max_prompt_bytes": max_prompt_bytes}
        super().__init__(spec, recipe, tokenizer, **limits, group=group, owner=owner)
        self._bodies = recipe
        self._max_model_len = max_model_len

    def asking(self, index: int, row: Row, text: str) -> Asking:
        body = self._bodies.body(text)
        prompt = self._prompt_of(body)
        room = self._max_model_len - len(prompt)
        if room < (body.limit or 1):
            wanted = f"the prompt has {len(prompt)} tokens" + (f" and asks for {body.limit}" if body.limit else "")
            raise RowRefused("too_long", f"{wanted}; the model takes {self._max_model_len} in all")
        format = _format(body)
        requests = tuple(
            Request(
                index if body.n == 1 else (index, place),
                prompt,
                SamplingParams(
                    **body.sampling,
                    seed=seed_of(body.seed, place),
                    max_tokens=body.limit or room,
                    logprobs=body.num_logprobs,
                ),
                format=format,
                group=self._group,
                owner=self._owner,
            )
            for place in range(body.n)
        )
        return Asking(requests, format=format)

    def _prompt_of(self, body: Body) -> tuple[int, ...]:
        if isinstance(body, ChatBody):
            return self._encode(conversation(body))
        if not isinstance(body.prompt, str):
            return tuple(body.prompt)
        tokens, start = self._tokenizer.encode(body.prompt), self._tokenizer.bos_token_id
        return tuple(tokens) if start is None else (start, *tokens)

    def answer(self, asking: Asking, outputs: Sequence[Output]) -> Result:
        """One choice per output. The prompt is counted once; a choice that failed fails the row.

        An answer that the limit cut is a success here, formatted or not: its `finish_reason` says so, as clients of
        the API expect.
        """
        results = [self._choice(output, asking.format) for output in outputs]
        tokens = sum(result.output_tokens for result in results)
        first = next((result for result in results if result.error is not None), results[0])
        values: dict[str, object] = {}
        if first.error is None:
            choices = [
                {"text": each.values["output"], "finish_reason": each.finish_reason, "logprobs": each.logprobs}
                for each in results
            ]
            values = {"output": first.values["output"], "choices": choices}
        counts = (first.prompt_tokens, first.cached_tokens, tokens)
        return Result(values, first.finish_reason, first.error, *counts)

    def _choice(self, output: Output, format: Format | None) -> Result:
        result = self.result(output)
        if format is None or result.error is not None or output.finish_reason is FinishReason.LENGTH:
            return result
        try:
            value_of(format, str(result.values["output"]), output.finish_reason)
        except AnswerRefused as refusal:
            counts = (result.prompt_tokens, result.cached_tokens, result.output_tokens)
            return Result({}, result.finish_reason, (refusal.code, refusal.message), *counts)
        return result


def _format(body: Body) -> Format | None:
    match body.format:
        case None:
            return None
        case ObjectFormat():
            return Format(FormatKind.JSON_OBJECT)
        case named:
            # Not strict: what cannot be enforced token by token is still looked at when the answer is whole.
            return Format.schema(named.json_schema.json_schema, lenient=not named.json_schema.strict)


def seed_of(seed: int | None, place: int) -> int | None:
    """The seed of a row's choice: the request's own for the first, derived from it for the others."""
    if seed is None or place == 0:
        return None if seed is None else seed % SEEDS
    return int.from_bytes(hashlib.blake2b(f"{seed}/{place}".encode(), digest_size=8).digest()) >> 1
