"""Stops: where an output ends. No torch here."""

from __future__ import annotations

import itertools
from collections.abc import Sequence as Items

from engine.batch import Sampled
from engine.request import FinishReason
from engine.sequence import Sequence


class Stops:
    """Appends sampled tokens to a sequence up to the one that ends it.

    An end-of-sequence or stop token stays in the sequence as its last token. A stop string is looked for in the bytes
    of the output, so that it is found across token boundaries and inside half-finished UTF-8; the token that completes
    it stays too, as text of value may precede it there. Neither ends an output of no more than `min_tokens` tokens.

    An output with a format ends with the token that makes it whole, and no end-of-sequence token follows.
    """

    def __init__(self, token_bytes: Items[bytes] | None = None) -> None:
        self._token_bytes = token_bytes

    def accept(self, sequence: Sequence, sampled: Sampled) -> None:
        """Append sampled.tokens as far as they go, and finish the sequence where it ends."""
        if len(sampled.tokens) == 1 and sequence.simple and not sequence.draft:
            _accept_one(sequence, sampled.tokens[0])
            return
        sampling = sequence.request.sampling
        tokens, output = sampled.tokens, sequence.num_output
        reason: FinishReason | None = None
        found: str | int | None = None
        for taken, token in enumerate(tokens, 1):
            output += 1
            if output > sampling.min_tokens:
                if token in sequence.stop_ids:
                    found = token
                elif sampling.stop:
                    found = self._stop_string(sequence, token)
            if found is not None or output >= sampling.max_tokens:
                tokens = tokens[:taken]
                reason = FinishReason.LENGTH if found is None else FinishReason.STOP
                break
        if sequence.grammar is not None:
            content = tokens[:-1] if isinstance(found, int) else tokens
            if not follow(sequence, content):
                reason, found = FinishReason.ERROR, None
            elif sequence.grammar.finished:
                tokens, reason, found = content, FinishReason.STOP, None
        if reason is not None:
            sequence.finish(reason, found)
        sequence.append(tokens)
        if sequence.logprobs is not None and sampled.logprobs is not None:
            sequence.logprobs.extend(sampled.logprobs[: len(tokens)])

    def _stop_string(self, sequence: Sequence, token: int) -> str | None:
        """The stop string that `token` completes, the one that begins first, else None; moves the tail on."""
        assert self._token_bytes is not None, "stop strings are refused without the tokens' bytes"
        stop = sequence.request.sampling.stop
        text = sequence.tail + self._token_bytes[token]
        places = [(text.find(wanted.encode()), wanted) for wanted in stop]
        found = min((place for place in places if place[0] >= 0), default=None, key=lambda place: place[0])
        if found is not None:
            return found[1]
        keep = max(len(wanted.encode()) for wanted in stop) - 1
        sequence.tail = text[-keep:] if keep else b""
        return None


def _accept_one(sequence: Sequence, token: int) -> None:
    """The same for the one token of a step without a draft, where nothing but its end can be of interest."""
    sequence.tokens.append(token)
    if token in sequence.stop_ids:
        sequence.finish(FinishReason.STOP, token)
    elif sequence.num_output >= sequence.request.sampling.max_tokens:
        sequence.finish(FinishReason.LENGTH)


def follow(sequence: Sequence, tokens: Items[int]) -> bool:
    """Let the sequence's grammar accept tokens of the output. False: it could not, and `sequence.error` says why."""
    grammar = sequence.grammar
    assert grammar is not None, "only outputs with a format are followed"
    if grammar.accept(tokens) == len(tokens) and not grammar.error:
        return True
    sequence.error = ("grammar_error", grammar.error or "a token was chosen that the format does not allow")
    return False


def commit(sequence: Sequence) -> int:
    """Append the tokens that the format forces next, and finish the sequence if that ends it. Returns how many."""
    grammar = sequence.grammar
    assert grammar is not None, "only outputs with a format are forced"
    room = sequence.request.sampling.max_tokens - sequence.num_output
    forced = list(itertools.takewhile(lambda token: token not in sequence.stop_ids, grammar.forced()[:room]))
    if not forced:
        return 0
    if not follow(sequence, forced):
        sequence.finish(FinishReason.ERROR)
        return 0
    sequence.append(forced)
    if grammar.finished:
        sequence.finish(FinishReason.STOP)
    elif len(forced) == room:
        sequence.finish(FinishReason.LENGTH)
    return len(forced)
