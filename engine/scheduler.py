"""Scheduler: which sequence computes how many tokens next. No torch here.

Running sequences go first, oldest first, each with all that it has pending as far as the step's token budget goes; then
waiting ones are admitted in order of arrival. So only the youngest running sequence is ever cut short, and whatever is
admitted finds every other running sequence's blocks in place.

When the blocks run out, the youngest running sequence gives its own back and waits, at the head of the queue, to be
computed again. The oldest therefore always gets on, and as a request that the whole cache could not hold is refused
before it comes here, everything ends.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterable

from engine.batch import Batch, Slice
from engine.blocks import BlockPool
from engine.config import EngineConfig
from engine.limits import Limits
from engine.request import FinishReason
from engine.sequence import Sequence


class Scheduler:
    """Owns the order of waiting and running sequences, and their block tables."""

    def __init__(self, config: EngineConfig, pool: BlockPool) -> None:
        self._pool = pool
        self._limits = Limits(config)
        self._rows = list(range(config.max_sequences - 1, -1, -1))  # nobody's; the end is taken first
        self._admitted: list[Sequence] = []  # by the last plan
        self._prefix_caching = config.prefix_caching
        self._waiting: deque[Sequence] = deque()
        self._running: list[Sequence] = []  # oldest first
        self._ended = False  # some sequence in the queues is finished already
        self.num_preemptions = 0
        self.num_prompt_tokens = 0  # of admitted requests
        self.num_cached_tokens = 0  # of these, found in the cache
        self.num_computed_tokens = 0

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    @property
    def num_running(self) -> int:
        return len(self._running)

    @property
    def running(self) -> tuple[Sequence, ...]:
        """Oldest first."""
        return tuple(self._running)

    @property
    def idle(self) -> bool:
        return not self._waiting and not self._running

    @property
    def num_expected(self) -> int:
        """About how many tokens the next step computes, drafts aside."""
        expected = sum(sequence.pending for sequence in self._running)
        if len(self._running) < self._limits.sequences and self._waiting:
            expected += sum(sequence.pending for sequence in itertools.islice(self._waiting, 8))
        return min(expected, self._limits.tokens)

    def add(self, sequence: Sequence) -> None:
        self._waiting.append(sequence)

    def abort(self, sequence: Sequence) -> None:
        """Finish a sequence between two steps; its blocks are free at once: what still computes it is done before
        anything that is planned later."""
        self.end(sequence, FinishReason.CANCELLED)

    def end(self, sequence: Sequence, reason: FinishReason) -> None:
        """The same for any reason."""
        sequence.finish(reason)
        self._release(sequence)
        self._ended = True

    def schedule(self) -> Batch:
        """Plan one step. The batch must be on its way before the next call, or be taken back: blocks that it fills are
        published now, so that a sequence admitted by the same call already shares them."""
        if self._ended:
            self._waiting = deque(sequence for sequence in self._waiting if sequence.finish_reason is None)
            self._running = [sequence for sequence in self._running if sequence.finish_reason is None]
            self._ended = False
        self._admitted.clear()
        slices: list[Slice] = []
        copies: list[tuple[int, int]] = []
        before = self.num_preemptions
        self._pool.plan_step()
        budget = self._continue(slices, self._limits.tokens)
        if self.num_preemptions == before:
            budget = self._admit(slices, copies, budget)
        self.num_computed_tokens += self._limits.tokens - budget
        return Batch(tuple(slices), tuple(copies))

    def update(self, settled: Iterable[Slice]) -> list[Sequence]:
        """Settle slices of a computed batch whose tokens are appended: give back the blocks of what finished and of
        rejected drafts. Returns what finished."""
        finished = []
        for sequence, _, stop in settled:
            if sequence.finish_reason is not None:
                self._ended |= sequence.row < 0  # it waits: preempted while this was computed
                self._release(sequence)
                finished.append(sequence)
            elif sequence.computed < stop:
                self._trim(sequence)
        if finished:
            self._running = [sequence for sequence in self._running if sequence.finish_reason is None]
        self._limits.ease()
        return finished

    def retreat(self, batch: Batch) -> bool:
        """There was no memory to compute the batch: plan as if it had never been, and less from now on. Returns whether
        there is less than this batch to try; else its one sequence is the caller's to finish."""
        lost = self._pool.retract()
        self.num_computed_tokens -= batch.num_tokens
        smaller = self._limits.shrink(batch)
        for sequence in reversed(self._running[:]):
            written = sequence.blocks[: sequence.computed // self._pool.block_size]
            if sequence in self._admitted or len(self._running) > self._limits.sequences or lost.intersection(written):
                self._preempt(sequence)
            elif lost:
                sealed = (block not in lost for block in sequence.blocks[: sequence.num_sealed])
                sequence.num_sealed = sum(itertools.takewhile(bool, sealed))
        return smaller

    def _continue(self, slices: list[Slice], budget: int) -> int:
        """Slices for the running sequences. Returns the budget that is left."""
        running, size = self._running, self._pool.block_size
        index = 0
        while index < len(running) and budget:
            sequence = running[index]
            if sequence.promised and sequence.promised_last:
                index += 1
                continue
            start = sequence.computed
            stop = min(sequence.num_known, start + budget)
            if len(sequence.blocks) * size < stop:
                if not self._make_room(sequence, stop):
                    break
                stop = min(sequence.num_known, stop)  # its draft may have been given up for room
                self._grow(sequence, stop)
            self._plan(slices, sequence, start, stop)
            budget -= stop - start
            index += 1
        return budget

    def _admit(self, slices: list[Slice], copies: list[tuple[int, int]], budget: int) -> int:
        """Slices for waiting sequences, as far as they fit whole, and copies of what they share with others within a
        block. Returns the budget that is left."""
        while budget and self._waiting and len(self._running) < self._limits.sequences:
            sequence = self._waiting[0]
            if sequence.promised:  # it was preempted just now, and its last token is in no row any more
                break
            root = self._pool.root(sequence.request.owner)
            hits = self._pool.match(sequence.tokens, root)
            missing = self._pool.num_blocks_of(sequence.num_known) - len(hits)
            # A block for every running sequence is left, or the next ones that they need would come by preemption.
            if missing + len(self._running) > self._pool.num_available - self._pool.num_idle(hits):
                break
            self._waiting.popleft()
            self._running.append(sequence)
            self._admitted.append(sequence)
            sequence.row = self._rows.pop()
            part = self._pool.match_part(sequence.tokens, hits, root)
            self._take_up(sequence, hits, part[1] if part is not None else 0)
            start = sequence.computed
            stop = min(sequence.num_known, start + budget)
            self._grow(sequence, stop)
            if part is not None:
                copies.append((part[0], sequence.blocks[len(hits)]))
            self._plan(slices, sequence, start, stop)
            budget -= stop - start
        return budget

    def _take_up(self, sequence: Sequence, hits: list[int], copied: int) -> None:
        """Start from blocks found in the cache, and so many tokens that are copied from one more."""
        self._pool.hold(hits)
        sequence.blocks.extend(hits)
        sequence.num_sealed = len(hits)
        sequence.computed = len(hits) * self._pool.block_size + copied
        if sequence.num_cached is None:
            # Committed tokens of the output may stand behind the prompt already.
            sequence.admit(min(sequence.computed, sequence.num_prompt))
            self.num_prompt_tokens += sequence.num_prompt
            self.num_cached_tokens += sequence.num_cached or 0

    def _plan(self, slices: list[Slice], sequence: Sequence, start: int, stop: int) -> None:
        """Add a slice and publish the blocks that it fills with tokens that are final."""
        slices.append(Slice(sequence, start, stop))
        if self._prefix_caching:
            full = min(stop, len(sequence.tokens)) // self._pool.block_size
            if full > sequence.num_sealed:
                self._seal(sequence, full, start)

    def _seal(self, sequence: Sequence, full: int, written: int) -> None:
        """Publish the sequence's first `full` blocks, of which the first `written` tokens are in the cache already."""
        size, root = self._pool.block_size, self._pool.root(sequence.request.owner)
        for index in range(sequence.num_sealed, full):
            end = (index + 1) * size
            tokens, done = sequence.tokens[end - size : end], end <= written
            if not self._pool.seal(sequence.blocks, index, tokens, written=done, root=root):
                break
            sequence.num_sealed += 1

    def _make_room(self, sequence: Sequence, stop: int) -> bool:
        """Make enough blocks available for a running sequence's first `stop` tokens, by giving up its draft or by
        preempting the youngest. Returns whether the sequence is still running."""
        if self._missing(sequence, stop) > self._pool.num_available and sequence.scoring is None:
            sequence.drop_proposal()
            stop = min(sequence.num_known, stop)
        while self._missing(sequence, stop) > self._pool.num_available:
            victim = self._running[-1]
            self._preempt(victim)
            if victim is sequence:
                return False
        return True

    def _preempt(self, victim: Sequence) -> None:
        """Take a running sequence's blocks, and put it before all that wait."""
        self._running.remove(victim)
        self._release(victim)
        victim.restart()
        self._waiting.appendleft(victim)
        self.num_preemptions += 1

    def _missing(self, sequence: Sequence, stop: int) -> int:
        return self._pool.num_blocks_of(stop) - len(sequence.blocks)

    def _grow(self, sequence: Sequence, stop: int) -> None:
        """Take the blocks for the first `stop` tokens."""
        sequence.blocks.extend(self._pool.take(max(self._missing(sequence, stop), 0)))

    def _trim(self, sequence: Sequence) -> None:
        """Give back the blocks that hold nothing valid."""
        keep = self._pool.num_blocks_of(sequence.computed)
        if keep < len(sequence.blocks):
            self._pool.release(sequence.blocks[keep:])
            del sequence.blocks[keep:]

    def _release(self, sequence: Sequence) -> None:
        self._pool.release(sequence.blocks)
        del sequence.blocks[:]
        if sequence.row >= 0:
            self._rows.append(sequence.row)
            sequence.row = -1
