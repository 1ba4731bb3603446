"""Simulator: an engine without a model. Scheduler, block pool and prefix cache are the real ones; tokens are made up,
and time is what a cost model says. No torch here."""

from __future__ import annotations

from functools import lru_cache

from engine.batch import Batch
from engine.blocks import BlockPool
from engine.config import EngineConfig
from engine.errors import InvalidRequest, RequestTooLong
from engine.request import FinishReason, Request, SamplingParams
from engine.scheduler import Scheduler
from engine.sequence import Sequence
from engine.simulation.costs import StepCost
from engine.simulation.jump import jump
from engine.simulation.requests import OUTPUTS, Drafts, SimulatedRequest
from engine.work import NO_WORK, Work


class Simulator:
    """One engine's worth of requests in flight. Its clock is `seconds`, its own to begin with and the caller's to move
    on while it is idle."""

    def __init__(self, config: EngineConfig, cost: StepCost, *, jumps: bool = True, works: list[Work] | None = None):
        """`config.num_blocks` is needed: there is no model here that would say how large a block is. `works` gets the
        work of every step appended. `jumps`: steps that are alike are made at once, which changes no result; recording
        them needs each.

        Raises InvalidRequest.
        """
        if config.num_blocks is None:
            raise InvalidRequest("num_blocks", None, "a simulated cache needs its number of blocks")
        self.seconds = 0.0
        self.steps = 0
        self.work = NO_WORK
        self.used_blocks = 0  # summed over steps
        self.starved_steps = 0  # in which a request waited for blocks alone
        self._config = config
        self._cost = cost
        self._jumps = jumps and works is None
        self._works = works
        self._pool = BlockPool(config.num_blocks, config.block_size, prefix_caching=config.prefix_caching)
        self._scheduler = Scheduler(config, self._pool)
        self._speculating: dict[int, Speculating] = {}  # by number, those in flight that guess
        self._steady = False  # the next step is the last one again
        self._starved = False  # the last step was

    @property
    def has_room(self) -> bool:
        """As Engine.has_room."""
        return self._scheduler.num_waiting < self._config.max_sequences

    @property
    def idle(self) -> bool:
        return self._scheduler.idle

    def add(self, number: int, request: SimulatedRequest) -> None:
        """Queue a request; `number` is its own. Raises RequestTooLong, as Engine.add does."""
        assert self._config.num_blocks is not None
        length, cache_size = len(request.prompt) + request.num_output, self._config.num_blocks * self._config.block_size
        if self._config.max_model_len is not None and length > self._config.max_model_len:
            raise RequestTooLong(length, self._config.max_model_len, "max_model_len")
        if length - 1 > cache_size:
            raise RequestTooLong(length - 1, cache_size, "the whole cache")
        if not self._scheduler.num_waiting:
            self._steady = False
        sampling = _sampling(request.num_output)
        sequence = Sequence(Request(number, request.prompt, sampling, owner=request.owner))
        if request.drafts is not None:
            self._speculating[number] = Speculating(request.drafts)
            self._speculating[number].guess(sequence)
        self._scheduler.add(sequence)

    def step(self) -> list[int]:
        """Simulate one step, and before it those that are like the last one. Returns the numbers of what finished."""
        if self._steady and self._jumps:
            self._jump()
        before = self._scheduler.num_running, self._scheduler.num_preemptions
        batch = self._scheduler.schedule()
        planned = self._scheduler.num_running, self._scheduler.num_preemptions
        num_logits = batch.num_logits
        work = Work.of(batch, num_logits)
        scheduler, config = self._scheduler, self._config
        room = scheduler.num_running < config.max_sequences and work.tokens < config.token_budget
        self._starved = room and scheduler.num_waiting > 0
        self._count(work, 1, self._pool.num_used)
        if self._works is not None:
            self._works.append(work)
        if self._speculating:
            self._settle_drafts(batch, num_logits)
        else:
            _settle(batch, num_logits)
        finished = self._scheduler.update(batch.slices)
        # Each computed its one token, nobody came or went, and what was shared late is shared by now.
        self._steady = before == planned and not finished and work.tokens == work.rows == work.sequences
        numbers = [_number(sequence) for sequence in finished]
        if self._speculating:
            self._steady = False
            for number in numbers:
                self._speculating.pop(number, None)
        return numbers

    def counts(self) -> tuple[int, int, int, int]:
        """Tokens of prompts, of these found in the cache, tokens computed, preemptions."""
        scheduler = self._scheduler
        return (
            scheduler.num_prompt_tokens, scheduler.num_cached_tokens, scheduler.num_computed_tokens,
            scheduler.num_preemptions,
        )  # fmt: skip

    def check(self) -> None:
        """Assert the block pool's invariants. For tests: slow."""
        self._pool.check(sequence.blocks for sequence in self._scheduler.running)

    def _jump(self) -> None:
        running = self._scheduler.running
        steps = min(each.request.sampling.max_tokens - each.num_output for each in running) - 1
        tokens = [OUTPUTS + _number(each) for each in running]
        caching = self._config.prefix_caching
        made = jump(self._scheduler, self._pool, steps, tokens, prefix_caching=caching) if steps > 0 else None
        if made is not None:
            self._count(made.work, made.steps, made.used_blocks)

    def _count(self, work: Work, steps: int, used_blocks: int) -> None:
        self.seconds += self._cost.seconds(work, steps)
        self.steps += steps
        self.starved_steps += steps if self._starved else 0
        self.work = self.work.plus(work)
        self.used_blocks += used_blocks

    def _settle_drafts(self, batch: Batch, num_logits: list[int]) -> None:
        """The same as `_settle` where some guess tokens ahead."""
        for (sequence, _, stop), count in zip(batch.slices, num_logits, strict=True):
            sequence.computed = stop
            if not count:
                continue
            speculating = self._speculating.get(_number(sequence))
            accepted = speculating.accepted(count - 1) if speculating is not None else 0
            room = sequence.request.sampling.max_tokens - sequence.num_output
            sequence.append([OUTPUTS + _number(sequence)] * min(accepted + 1, room))
            if accepted + 1 >= room:
                sequence.finish(FinishReason.LENGTH)
            elif speculating is not None:
                speculating.guess(sequence)


class Speculating:
    """A sequence's way through its Drafts."""

    __slots__ = ("_drafts", "_step")

    def __init__(self, drafts: Drafts) -> None:
        self._drafts = drafts
        self._step = 0

    def guess(self, sequence: Sequence) -> None:
        """Put the next step's draft behind a sequence, as far as there is room."""
        count = min(self._drafts.at(self._step)[0], sequence.draft_room)
        sequence.propose([OUTPUTS + _number(sequence)] * count, [0] * count)

    def accepted(self, verified: int) -> int:
        """A step has verified so many tokens: how many of them were right."""
        self._step += 1
        return min(self._drafts.at(self._step - 1)[1], verified)


def _settle(batch: Batch, num_logits: list[int]) -> None:
    """Append a made-up token to what has all of its tokens computed, and end what is long enough."""
    for (sequence, _, stop), count in zip(batch.slices, num_logits, strict=True):
        sequence.computed = stop
        if count:
            sequence.tokens.append(OUTPUTS + _number(sequence))
            if sequence.num_output >= sequence.request.sampling.max_tokens:
                sequence.finish(FinishReason.LENGTH)


def _number(sequence: Sequence) -> int:
    number = sequence.request.id
    assert isinstance(number, int)
    return number


@lru_cache(maxsize=4096)
def _sampling(num_output: int) -> SamplingParams:
    return SamplingParams(max_tokens=num_output, ignore_eos=True)
