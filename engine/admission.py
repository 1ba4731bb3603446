"""Admission: from a request to a sequence, or to the reason why it is refused."""

from __future__ import annotations

import secrets
from collections.abc import Sequence as Items

from engine.choices import ChoiceTree, Scoring
from engine.errors import InvalidRequest, RequestTooLong
from engine.grammar import Backend
from engine.request import Request
from engine.sequence import Sequence


class Admission:
    """What an engine can take in. Sizes in tokens."""

    def __init__(
        self,
        *,
        max_model_len: int,
        cache_size: int,
        vocab_size: int,
        eos_token_ids: frozenset[int],
        token_bytes: Items[bytes] | None,
        grammars: Backend | None,
    ) -> None:
        self._max_model_len = max_model_len
        self._cache_size = cache_size
        self._vocab_size = vocab_size
        self._eos_token_ids = eos_token_ids
        self._token_bytes = token_bytes
        self._grammars = grammars
        # Of the last request with choices: mostly the next one has the same.
        self._tree: ChoiceTree | None = None

    def sequence(self, request: Request) -> Sequence:
        """Raises RequestTooLong when it could never be finished, UnsupportedFormat, InvalidRequest when a token is not
        the model's or the engine was built without what the request needs."""
        self._validate(request)
        scoring = grammar = None
        if request.choices:
            if self._tree is None or request.choices != self._tree.choices:
                self._tree = ChoiceTree(request.choices)
            scoring = Scoring(self._tree, request.choice_margin)
        elif request.format is not None:
            if self._grammars is None:
                raise InvalidRequest("format", request.format.kind, "this engine has no grammars")
            grammar = self._grammars.start(request.format)
        seed = secrets.randbits(63)
        return Sequence(request, seed=seed, eos_token_ids=self._eos_token_ids, scoring=scoring, grammar=grammar)

    def _validate(self, request: Request) -> None:
        length = len(request.prompt) + request.max_new_tokens
        if length > self._max_model_len:
            raise RequestTooLong(length, self._max_model_len, "max_model_len")
        if length - 1 > self._cache_size:  # the last token of an output is never computed
            raise RequestTooLong(length - 1, self._cache_size, "the whole cache")
        fields = [("prompt", request.prompt), ("stop_token_ids", request.sampling.stop_token_ids)]
        fields += [("choices", choice) for choice in request.choices]
        for field, tokens in fields:
            if tokens and not (min(tokens) >= 0 and max(tokens) < self._vocab_size):
                wrong = next(token for token in tokens if not 0 <= token < self._vocab_size)
                raise InvalidRequest(field, wrong, f"is no token: the vocabulary has {self._vocab_size}")
        if request.sampling.stop and self._token_bytes is None:
            raise InvalidRequest("stop", request.sampling.stop, "this engine does not know the text of its tokens")
