"""Engine: requests in, outputs out. The loop: schedule, run, sample, update, draft, return what finished."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping
from collections.abc import Sequence as Items

import torch

from engine.admission import Admission
from engine.batch import Sampled, Slice
from engine.blocks import BlockPool
from engine.cache import KVCache
from engine.choice import choice_of
from engine.clock import Clock
from engine.computation import Computation
from engine.config import EngineConfig
from engine.counters import Counters
from engine.drafter import Speculation
from engine.drafter.budget import Load
from engine.errors import EngineError, InvalidRequest
from engine.grammar import Backend
from engine.grammar.masks import Masks
from engine.models import Model
from engine.outputs import completion, refusal
from engine.parallel import Team
from engine.request import FinishReason, Output, Request
from engine.runners import runner_of
from engine.sampler import Sampler
from engine.scheduler import Scheduler
from engine.sequence import Sequence
from engine.stats import EngineStats
from engine.stops import Stops, commit


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
        grammars: Backend | None = None,
        speculation: Speculation | None = None,
        team: Team | None = None,
    ) -> None:
        """`token_bytes` (the bytes of every token id) is needed for stop strings alone, `grammars` for formats, `team`
        where the model is a part of one.

        Raises InvalidRequest when the configuration asks for more than the model can do, OutOfCache.
        """
        self.max_model_len = config.max_model_len or model.config.max_position
        if self.max_model_len > model.config.max_position:
            raise InvalidRequest(
                "max_model_len", config.max_model_len, f"is more than the model's {model.config.max_position}"
            )
        if config.num_threads is not None:
            torch.set_num_threads(config.num_threads)
        self._max_sequences = config.max_sequences
        self._token_budget = config.token_budget
        cache = KVCache.fit(model.config, config)
        self._pool = BlockPool(cache.num_blocks, cache.block_size, prefix_caching=config.prefix_caching)
        self._admission = Admission(
            max_model_len=self.max_model_len,
            cache_size=cache.num_blocks * cache.block_size,
            vocab_size=model.config.vocab_size,
            eos_token_ids=eos_token_ids,
            token_bytes=token_bytes,
            grammars=grammars,
        )
        self._scheduler = Scheduler(config, self._pool)
        self._stops = Stops(token_bytes)
        self._speculation = speculation
        self._sequences: dict[Hashable, Sequence] = {}  # in flight, by request id
        self._due: list[Sequence] = []  # ended outside a step; their outputs come out of the next
        self._counters = Counters()
        self._clock = Clock()
        runner, choice = runner_of(model, cache, config), choice_of(config)
        masks = Masks(grammars, model.config.vocab_size, choice) if grammars is not None else None
        self._team = team
        self._computation = Computation(
            runner if team is None else team.lead(runner), Sampler(choice), masks, self._clock, self._counters
        )

    @property
    def has_room(self) -> bool:
        """Whether another request is of use now: fewer wait than could run."""
        return self._scheduler.num_waiting < self._max_sequences

    @property
    def idle(self) -> bool:
        """Whether nothing is in flight and no output is due."""
        return not self._sequences and not self._due

    def add(self, request: Request) -> None:
        """Queue a request.

        Raises RequestTooLong when it could never be finished, UnsupportedFormat, InvalidRequest when its id is in
        flight already, a token is not the model's, or the engine was built without what it needs.
        """
        if request.id in self._sequences:
            raise InvalidRequest("id", request.id, "is in flight already")
        sequence = self._admission.sequence(request)
        if sequence.grammar is not None:
            self._begin(sequence)
            if sequence.finish_reason is not None:
                self._due.append(sequence)
                return
        self._sequences[request.id] = sequence
        self._scheduler.add(sequence)

    def abort(self, request_id: Hashable) -> bool:
        """Cancel a request: its output comes out of the next step as CANCELLED. False: it is not in flight."""
        sequence = self._sequences.pop(request_id, None)
        if sequence is None:
            return False
        self._scheduler.abort(sequence)
        self._forget(sequence)
        self._due.append(sequence)
        return True

    def step(self) -> list[Output]:
        """Compute one batch. Returns what finished, in no particular order."""
        finished, self._due = self._due, []
        clock = self._clock
        clock.start()
        batch = self._scheduler.schedule()
        clock.lap("schedule")
        if batch.slices:
            settled = zip(batch.slices, batch.num_logits, self._computation.run(batch), strict=True)
            ready = [piece.sequence for piece, count, sampled in settled if self._advance(piece, count, sampled)]
            ended = self._scheduler.update(batch)
            for sequence in ended:
                del self._sequences[sequence.request.id]
                self._forget(sequence)
            finished += ended
            clock.lap("settle")
            if self._speculation is not None and ready:
                self._speculation.propose(ready, self._load(ready))
                clock.lap("draft")
            self._counters.steps += 1
        outputs = [completion(sequence) for sequence in finished]
        clock.lap("output")
        return outputs

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
                    except EngineError as error:
                        yield refusal(request, error)
                for output in self.step():
                    own.discard(output.id)
                    yield output
        finally:
            for request_id in own:
                self.abort(request_id)

    def stats(self) -> EngineStats:
        drafts = self._speculation.stats() if self._speculation is not None else ()
        return self._counters.stats(self._scheduler, self._pool, drafts, self._clock.seconds)

    def profile(self) -> Mapping[str, float]:
        """Seconds since the engine was built by part of a step (engine.clock.PARTS). A live view."""
        return self._clock.seconds

    def check(self) -> None:
        """Assert the block pool's invariants against the sequences in flight. For tests: slow."""
        self._pool.check(sequence.blocks for sequence in self._sequences.values())

    def close(self) -> None:
        """Let go of the model and the cache. The engine cannot be used afterwards."""
        self._computation.close()
        if self._team is not None:
            self._team.close()

    def _begin(self, sequence: Sequence) -> None:
        """Put what the format forces at the very beginning behind the prompt, so that one pass computes both."""
        if sequence.request.forced == "commit":
            committed = commit(sequence)
            self._counters.forced_tokens += committed
            self._counters.output_tokens += committed
        elif self._speculation is not None:
            self._speculation.propose([sequence], Load(max(self._scheduler.num_running, 1), self._token_budget))

    def _advance(self, piece: Slice, num_logits: int, sampled: Sampled) -> bool:
        """Settle one slice of a computed batch. Returns whether its output grew and goes on."""
        sequence = piece.sequence
        sequence.computed = piece.stop
        if not sampled.valid:
            sequence.error = ("invalid_logits", "the model's logits are not finite numbers")
            sequence.finish(FinishReason.ERROR)
        elif sequence.scoring is not None:
            if not sequence.pending:
                sequence.walk()
        elif sampled.tokens:
            if num_logits > 1 and self._speculation is not None:
                self._speculation.settle(sequence, num_logits - 1, len(sampled.tokens) - 1)
            before = len(sequence.tokens)
            self._stops.accept(sequence, sampled)
            if sequence.request.forced == "commit" and sequence.finish_reason is None:
                self._counters.forced_tokens += commit(sequence)
            self._counters.output_tokens += len(sequence.tokens) - before
            return sequence.finish_reason is None
        return False

    def _load(self, ready: list[Sequence]) -> Load:
        """What the next step holds, drafts aside; `ready` go on with a token each."""
        others = None
        if self._scheduler.num_running + self._scheduler.num_waiting <= self._max_sequences:
            own = {sequence.request.id for sequence in ready}
            others = [each.draft_room + 1 for key, each in self._sequences.items() if key not in own]
        return Load(len(ready), self._scheduler.num_expected, others)

    def _forget(self, sequence: Sequence) -> None:
        if self._speculation is not None:
            self._speculation.finish(sequence)
