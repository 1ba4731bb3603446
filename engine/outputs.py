"""Outputs of sequences that finished and of requests that were refused. No torch here."""

from __future__ import annotations

import time

from engine.errors import EngineError
from engine.request import FinishReason, Output, Request, Times
from engine.sequence import Sequence


def completion(sequence: Sequence) -> Output:
    """What the caller gets of a finished sequence."""
    tokens = tuple(sequence.tokens[sequence.num_prompt :])
    num_output, scores = len(tokens), None
    if sequence.finish_reason is FinishReason.STOP:
        if sequence.scoring is not None:
            scores = sequence.scoring.totals()
            tokens = sequence.request.choices[scores.index(max(scores))]
            num_output = len(tokens)
        elif isinstance(sequence.stopped_by, int):
            tokens = tokens[:-1]
    assert sequence.finish_reason is not None, "only finished sequences come out"
    code, message = sequence.error or (None, None)
    return Output(
        id=sequence.request.id,
        tokens=tokens,
        finish_reason=sequence.finish_reason,
        num_prompt_tokens=sequence.num_prompt,
        num_cached_tokens=sequence.num_cached or 0,
        num_output_tokens=num_output,
        stopped_by=sequence.stopped_by,
        logprobs=None if sequence.logprobs is None else tuple(sequence.logprobs[: len(tokens)]),
        choice_logprobs=scores,
        error=message,
        error_code=code,
        times=_times(sequence),
    )


def _times(sequence: Sequence) -> Times | None:
    admitted, prefilled = sequence.admitted, sequence.prefilled
    if admitted is None or prefilled is None:
        return None
    return Times(admitted - sequence.arrived, prefilled - admitted, time.perf_counter() - prefilled)


def refusal(request: Request, error: EngineError) -> Output:
    """The output of a request that was never taken in."""
    return Output(
        id=request.id,
        tokens=(),
        finish_reason=FinishReason.ERROR,
        num_prompt_tokens=len(request.prompt),
        num_cached_tokens=0,
        num_output_tokens=0,
        error=str(error),
        error_code=error.code,
    )
