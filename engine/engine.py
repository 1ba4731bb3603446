"""Engine: requests in, outputs out. The loop: schedule, run, sample, update, draft, return what finished."""

from __future__ import annotations

import secrets
from collections.abc import Hashable, Iterable, Iterator
from collections.abc import Sequence as Items

import torch

from engine.batch import Sampled, Slice
from engine.blocks import BlockPool
from engine.cache import KVCache
from engine.choices import ChoiceTree, Scoring
from engine.config import EngineConfig
from engine.drafter import Drafter
from engine.errors import InvalidRequest, RequestTooLong
from engine.models import Model
from engine.outputs import completion, refusal
from engine.request import FinishReason, Output, Request
from engine.runner import ModelRunner
from engine.sampler import Sampler
from engine.scheduler import Scheduler
from engine.sequence import Sequence
from engine.stats import EngineStats
from engine.stops import Stops


class Engine:
    """One model, one cache, one loop. Not thread-safe: one thread owns it.

    After an exception out of `step` the engine's state is undefined: close it and build another.
    """

    def __init__(
        self,
        model: Model,
        config: EngineConfig,
        *,
        eos_token_ids: frozenset[int],
        token_bytes: Items[bytes] | None = None,
        drafter: Drafter | None = None,
    ) -> None:
        """`token_bytes` (the bytes of every token id) is needed for stop strings alone.

        Raises InvalidRequest when the configuration asks for more than the model can do, OutOfCache.
        """
        self.max_model_len = config.max_model_len or model.config.max_position
        if self.max_model_len > model.config.max_position:
            raise InvalidRequest(
                "max_model_len", config.max_model_len, f"is more than the model's {model.config.max_position}"
            )
        if config.num_threads is not None:
            torch.set_num_threads(config.num_threads)
        self._vocab_size = model.config.vocab_size
        self._max_sequences = config.max_sequences
        self._eos_token_ids = eos_token_ids
        self._token_bytes = token_bytes
        cache = KVCache.fit(model.config, config)
        self._pool = BlockPool(cache.num_blocks, cache.block_size, prefix_caching=config.prefix_caching)
        self._scheduler = Scheduler(config, self._pool)
        self._runner = ModelRunner(model, cache)
        self._sampler = Sampler()
        self._stops = Stops(token_bytes)
        self._drafter = drafter
        self._sequences: dict[Hashable, Sequence] = {}  # in flight, by request id
        self._aborted: list[Sequence] = []  # their outputs are due
        # Of the last request with choices: mostly the next one has the same.
        self._tree: ChoiceTree | None = None
        self._num_steps = self._num_output_tokens = 0

    @property
    def has_room(self) -> bool:
        """Whether another request is of use now: fewer wait than could run."""
        return self._scheduler.num_waiting < self._max_sequences

    @property
    def idle(self) -> bool:
        """Whether nothing is in flight and no output is due."""
        return not self._sequences and not self._aborted

    def add(self, request: Request) -> None:
        """Queue a request.

        Raises RequestTooLong when it could never be finished, InvalidRequest when its id is in flight already, a token
        is not the model's, or it has stop strings and the engine no `token_bytes`.
        """
        self._validate(request)
        scoring = None
        if request.choices:
            if self._tree is None or request.choices != self._tree.choices:
                self._tree = ChoiceTree(request.choices)
            scoring = Scoring(self._tree)
        sequence = Sequence(request, seed=secrets.randbits(63), eos_token_ids=self._eos_token_ids, scoring=scoring)
        self._sequences[request.id] = sequence
        self._scheduler.add(sequence)

    def abort(self, request_id: Hashable) -> bool:
        """Cancel a request: its output comes out of the next step as CANCELLED. False: it is not in flight."""
        sequence = self._sequences.pop(request_id, None)
        if sequence is None:
            return False
        self._scheduler.abort(sequence)
        self._aborted.append(sequence)
        return True

    def step(self) -> list[Output]:
        """Compute one batch. Returns what finished, in no particular order."""
        finished, self._aborted = self._aborted, []
        batch = self._scheduler.schedule()
        if batch.slices:
            logits = self._runner.run(batch)
            for piece, sampled in zip(batch.slices, self._sampler.sample(logits, batch), strict=True):
                self._advance(piece, sampled)
            ended = self._scheduler.update(batch)
            for sequence in ended:
                del self._sequences[sequence.request.id]
            finished += ended
            self._propose()
            self._num_steps += 1
        return [completion(sequence) for sequence in finished]

    def generate(self, requests: Iterable[Request]) -> Iterator[Output]:
        """The outputs of all requests, as they finish.

        Pulls the next request only when there is room for it, so that `requests` may be endless. One that `add`
        refuses comes out at once with the reason ERROR. Closing the iterator early aborts what is in flight.
        """
        source = iter(requests)
        more = True
        own: set[Hashable] = set()
        try:
            while more or own:
                while more and self.has_room:
                    request = next(source, None)
                    if request is None:
                        more = False
                        break
                    try:
                        self.add(request)
                        own.add(request.id)
                    except (InvalidRequest, RequestTooLong) as error:
                        yield refusal(request, error)
                for output in self.step():
                    own.discard(output.id)
                    yield output
        finally:
            for request_id in own:
                self.abort(request_id)

    def stats(self) -> EngineStats:
        scheduler, pool = self._scheduler, self._pool
        return EngineStats(
            steps=self._num_steps,
            prompt_tokens=scheduler.num_prompt_tokens,
            cached_tokens=scheduler.num_cached_tokens,
            output_tokens=self._num_output_tokens,
            computed_tokens=scheduler.num_computed_tokens,
            preemptions=scheduler.num_preemptions,
            running=scheduler.num_running,
            waiting=scheduler.num_waiting,
            blocks_total=pool.num_blocks,
            blocks_used=pool.num_used,
            blocks_cached=pool.num_cached,
        )

    def check(self) -> None:
        """Assert the block pool's invariants against the sequences in flight. For tests: slow."""
        self._pool.check(sequence.blocks for sequence in self._sequences.values())

    def close(self) -> None:
        """Let go of the model and the cache. The engine cannot be used afterwards."""
        del self._runner

    def _validate(self, request: Request) -> None:
        if request.id in self._sequences:
            raise InvalidRequest("id", request.id, "is in flight already")
        length = len(request.prompt) + request.max_new_tokens
        if length > self.max_model_len:
            raise RequestTooLong(length, self.max_model_len, "max_model_len")
        cached = self._pool.num_blocks * self._pool.block_size
        if length - 1 > cached:  # the last token of an output is never computed
            raise RequestTooLong(length - 1, cached, "the whole cache")
        fields = [("prompt", request.prompt), ("stop_token_ids", request.sampling.stop_token_ids)]
        fields += [("choices", choice) for choice in request.choices]
        for field, tokens in fields:
            if tokens and not (min(tokens) >= 0 and max(tokens) < self._vocab_size):
                wrong = next(token for token in tokens if not 0 <= token < self._vocab_size)
                raise InvalidRequest(field, wrong, f"is no token: the vocabulary has {self._vocab_size}")
        if request.sampling.stop and self._token_bytes is None:
            raise InvalidRequest("stop", request.sampling.stop, "this engine does not know the text of its tokens")

    def _advance(self, piece: Slice, sampled: Sampled) -> None:
        """Settle one slice of a computed batch."""
        sequence = piece.sequence
        sequence.computed = piece.stop
        if not sampled.valid:
            sequence.error = ("invalid_logits", "the model's logits are not finite numbers")
            sequence.finish(FinishReason.ERROR)
        elif sequence.scoring is not None:
            if not sequence.pending:
                sequence.walk()
        elif sampled.tokens:
            before = len(sequence.tokens)
            self._stops.accept(sequence, sampled)
            self._num_output_tokens += len(sequence.tokens) - before

    def _propose(self) -> None:
        """Ask for drafts where the next step would otherwise compute one token."""
        if self._drafter is None:
            return
        ready = [each for each in self._scheduler.running if each.pending == 1 and each.draft_room > 0]
        for sequence, draft in zip(ready, self._drafter.propose(ready), strict=True):
            sequence.draft.extend(draft[: sequence.draft_room])
