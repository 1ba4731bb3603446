"""Twins: requests that must have the same answer are computed once.

A request is settled by its prompt and parameters where nothing is left to chance: greedy ones, scored choices, and
drawn ones with a seed of their own. The first of such twins goes to the engine, those that come meanwhile wait for it,
and later ones are answered from `Results`. Owned by the engine thread.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Hashable
from dataclasses import astuple, replace
from functools import lru_cache

from engine import Engine
from engine.errors import EngineError
from engine.format import Format
from engine.request import FinishReason, Output, Request, SamplingParams
from worker.results import Key, Results
from worker.sources import refusal

WHOLE = (FinishReason.STOP, FinishReason.LENGTH)


def key_of(request: Request, salt: bytes) -> Key | None:
    """128 bits of BLAKE2b over all that decides the answer; None where chance does. `salt` stands for the model."""
    sampling = request.sampling
    if not request.choices and not sampling.greedy and sampling.seed is None:
        return None
    digest = hashlib.blake2b(salt, digest_size=16)
    for tokens in (request.prompt, *request.choices):
        digest.update(len(tokens).to_bytes(8, "little"))
        digest.update(array("q", tokens).tobytes())
    digest.update(_decides(sampling, request.format, request.forced, request.choice_margin, len(request.choices)))
    return digest.digest()


@lru_cache(maxsize=256)
def _decides(
    sampling: SamplingParams, format: Format | None, forced: str, choice_margin: float | None, num_choices: int
) -> bytes:
    """The same for nearly every row of a job: writing it down costs several times the rest of a key."""
    return repr((astuple(sampling), format, forced, choice_margin, num_choices)).encode()


class Twins:
    def __init__(self, results: Results, salt: bytes) -> None:
        """`salt` differs for every model and whatever else of the engine decides its answers."""
        self._results = results
        self._salt = salt
        self._keys: dict[Hashable, Key] = {}  # of what is in the engine, by request id
        self._waiting: dict[Key, list[Request]] = {}  # for what is in the engine

    def offer(self, engine: Engine, request: Request, reuse: str | None) -> list[Output]:
        """Put a request into the engine, unless its answer is known or coming within the tenant `reuse`; None: it may
        not be reused. Returns the answers that are there already, a refusal by the engine included."""
        known = None if reuse is None else self.find(request, reuse)
        if known is None:
            try:
                engine.add(request)
            except EngineError as error:
                return self.settle(refusal(request, error))
            return []
        return known

    def find(self, request: Request, tenant: str) -> list[Output] | None:
        """What to do with a new request: None, compute it; an answer, if it is known; or nothing yet ([]), since it
        comes with its twin's. What one tenant asked, another is not told."""
        key = key_of(request, self._salt + f"\0{tenant}\0".encode())
        if key is None:
            return None
        waiting = self._waiting.get(key)
        if waiting is not None:
            waiting.append(request)
            return []
        known = self._results.get(key)
        if known is not None:
            return [replace(known, id=request.id, reused=True)]
        self._keys[request.id] = key
        self._waiting[key] = []
        return None

    def settle(self, output: Output) -> list[Output]:
        """An output of the engine, and those of the requests that waited for it."""
        key = self._keys.pop(output.id, None)
        if key is None:
            return [output]
        if output.finish_reason in WHOLE:
            self._results.put(key, output)
        return [output, *(replace(output, id=twin.id, times=None, reused=True) for twin in self._waiting.pop(key))]

    def drop(self, request_id: Hashable) -> bool:
        """The request was given up. Returns whether the engine can stop computing it."""
        key = self._keys.get(request_id)
        if key is not None:
            if self._waiting[key]:
                return False
            del self._keys[request_id], self._waiting[key]
            return True
        for waiting in self._waiting.values():
            waiting[:] = [twin for twin in waiting if twin.id != request_id]
        return True
