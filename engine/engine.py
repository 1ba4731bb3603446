"""Engine: requests in, outputs out. The loop: schedule, run, sample, update, draft, return what finished."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping
from collections.abc import Sequence as Items

import torch

from engine.admission import Admission
from engine.batch import Batch
from engine.blocks import BlockPool
from engine.cache import KVCache
from engine.clock import Clock
from engine.computation import Flight, computation_of
from engine.config import EngineConfig
from engine.counters import Counters
from engine.drafter import Speculation, StepCosts
from engine.drafter.budget import Load
from engine.drafter.profile import CONTEXT
from engine.errors import EngineError, InvalidRequest
from engine.grammar import Backend
from engine.models import Model
from engine.outputs import completion, refusal
from engine.parallel import Team
from engine.request import FinishReason, Output, Request
from engine.scheduler import Scheduler
from engine.sequence import Sequence
from engine.settling import Settling
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
        grammars: Backend | None = None,
        speculation: Speculation | None = None,
        team: Team | None = None,
    ) -> None:
        """`token_bytes` (the bytes of every token id) is needed for stop strings alone, `grammars` for formats, `team`
        where the model is a part of one.

        Raises InvalidRequest when the configuration asks for more than the model can do, OutOfCache.
        """
        self.max_model_len = config.max_model_len or model.config.max_position
        longest = model.config.max_position
        if self.max_model_len > longest:
            raise InvalidRequest("max_model_len", config.max_model_len, f"is more than the model's {longest}")
        if config.num_threads is not None:
            torch.set_num_threads(config.num_threads)
        self._config = config
        cache = KVCache.fit(model.config, config)
        self.cache_size = cache.num_blocks * cache.block_size  # in tokens
        self.cache_bytes = cache.num_blocks * cache.bytes_per_block
        self._pool = BlockPool(cache.num_blocks, cache.block_size, prefix_caching=config.prefix_caching)
        self._admission = Admission(
            max_model_len=self.max_model_len,
            cache_size=self.cache_size,
            vocab_size=model.config.vocab_size,
            eos_token_ids=eos_token_ids,
            token_bytes=token_bytes,
            grammars=grammars,
        )
        self._scheduler = Scheduler(config, self._pool)
        self._speculation = speculation
        self._sequences: dict[Hashable, Sequence] = {}  # in flight, by request id
        self._due: list[Sequence] = []  # ended outside a step; their outputs come out of the next
        self._flight: Flight | None = None  # begun before the last step had ended
        self._counters = Counters(config.max_sequences)
        self._settling = Settling(Stops(token_bytes), speculation, self._counters, config.max_sequences)
        self._clock = Clock()
        self._team = team
        self._computation = computation_of(
            model, cache, config, clock=self._clock, counters=self._counters, grammars=grammars, team=team
        )

    @property
    def has_room(self) -> bool:
        """Whether another request is of use now: fewer wait than could run."""
        return self._scheduler.num_waiting < self._config.max_sequences

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
            self._settling.begin(sequence, Load(max(self._scheduler.num_running, 1), self._config.token_budget))
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
        self._settling.forget(sequence)
        self._due.append(sequence)
        return True

    def step(self) -> list[Output]:
        """Compute one batch. Returns what finished, in no particular order.

        A device that chooses the tokens itself gets the next batch before those of this one are read, so that it never
        waits for the host; the host settles one step behind it, and what was computed beyond an end is thrown away.
        """
        finished, self._due = self._due, []
        self._clock.start()
        flight = self._flight or self._begin()
        if flight is not None:
            ahead = not flight.needs_host and self._settling.may_wait(len(flight.batch))
            self._flight = self._begin() if ahead else None
            finished += self._end(flight, ahead=ahead)
            if not self._sequences:
                self._flight = None  # nobody is left that it could be of use to
        outputs = [completion(sequence) for sequence in finished]
        self._clock.lap("output")
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

    def time_steps(self) -> StepCosts:
        """What steps cost, measured before the first request, in blocks that are nobody's yet."""
        return self._computation.time_steps(min(CONTEXT, self.max_model_len, self.cache_size), self._config)

    def check(self) -> None:
        """Assert the block pool's invariants against the sequences in flight. For tests: slow."""
        self._pool.check(sequence.blocks for sequence in self._sequences.values())

    def close(self) -> None:
        """Let go of the model and the cache. The engine cannot be used afterwards."""
        self._flight = None
        self._computation.close()
        if self._team is not None:
            self._team.close()

    def _begin(self) -> Flight | None:
        """Plan a batch and send it off. None: there is nothing to compute."""
        while (batch := self._scheduler.schedule()).slices:
            self._clock.lap("schedule")
            try:
                flight = self._computation.begin(batch)
            except torch.OutOfMemoryError:
                self._retreat(batch)
                continue
            for (sequence, _, stop), count in zip(batch.slices, flight.num_logits, strict=True):
                sequence.computed = stop
                sequence.promised += count > 0
            return flight
        return None

    def _end(self, flight: Flight, *, ahead: bool) -> list[Sequence]:
        """Wait for a batch and settle it. Returns what finished. `ahead`: the next one is on its way."""
        batch = flight.batch
        try:
            sampled = self._computation.end(flight)
        except torch.OutOfMemoryError:
            for (sequence, start, _), count in zip(batch.slices, flight.num_logits, strict=True):
                sequence.computed = start
                sequence.promised -= count > 0
            self._retreat(batch)
            return []
        live, ready = [], []
        for piece, count, found in zip(batch.slices, flight.num_logits, sampled, strict=True):
            sequence = piece.sequence
            sequence.promised -= count > 0
            if sequence.finish_reason is None:  # else it ended, or was aborted, while this was computed
                live.append(piece)
                if self._settling.advance(piece, count, found):
                    ready.append(sequence)
        ended = self._scheduler.update(live)
        for sequence in ended:
            del self._sequences[sequence.request.id]
            self._settling.forget(sequence)
        self._counters.steps += 1
        self._clock.lap("settle")
        if not ahead:
            self._settling.guess(ready, self._scheduler, self._sequences.values(), alone=not flight.needs_host)
            self._clock.lap("draft")
        return ended

    def _retreat(self, batch: Batch) -> None:
        """There was no memory for a batch: free some, and go on with less at a time. Only a sequence that is alone and
        cannot be computed in smaller parts ends of it."""
        self._computation.free_memory()
        if not self._scheduler.retreat(batch):
            (sequence,) = (piece.sequence for piece in batch)
            sequence.error = ("out_of_memory", "the device has no memory for this request, even alone")
            self._scheduler.end(sequence, FinishReason.ERROR)
            del self._sequences[sequence.request.id]
            self._settling.forget(sequence)
            self._due.append(sequence)
