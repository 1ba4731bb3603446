"""BlockPool: exact ids, references, prefix hits, eviction; and every invariant under random lives of sequences."""

from __future__ import annotations

from array import array

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from engine.batch import Sampled
from engine.blocks import BlockPool
from engine.config import EngineConfig
from engine.request import Request, SamplingParams
from engine.scheduler import Scheduler
from engine.sequence import Sequence
from engine.stops import Stops


def table(*blocks: int) -> array[int]:
    return array("i", blocks)


def sealed(pool: BlockPool, tokens: list[int]) -> array[int]:
    """A table of whole published blocks."""
    size = pool.block_size
    blocks = table(*pool.take(len(tokens) // size))
    for index in range(len(blocks)):
        assert pool.seal(blocks, index, tokens[index * size : (index + 1) * size], written=False)
    return blocks


def test_blocks_are_taken_from_zero_and_released_ones_are_taken_again() -> None:
    pool = BlockPool(4, 2)
    assert pool.take(3) == [0, 1, 2]
    assert (pool.num_available, pool.num_used, pool.num_cached) == (1, 3, 0)
    pool.release([0, 1, 2])
    assert (pool.num_available, pool.num_used, pool.num_cached) == (4, 0, 0)
    assert pool.take(4) == [0, 1, 2, 3]
    pool.check([[0, 1, 2, 3]])


def test_taking_more_than_there_is_is_a_defect_of_the_caller() -> None:
    pool = BlockPool(2, 2)
    with pytest.raises(AssertionError, match="more blocks taken than are available"):
        pool.take(3)


@pytest.mark.parametrize(("num_tokens", "blocks"), [(0, 0), (1, 1), (16, 1), (17, 2)])
def test_blocks_of_tokens(num_tokens: int, blocks: int) -> None:
    assert BlockPool(1, 16).num_blocks_of(num_tokens) == blocks


def test_a_match_leaves_at_least_the_last_token() -> None:
    pool = BlockPool(8, 2)
    blocks = sealed(pool, [1, 2, 3, 4])
    assert pool.match([1, 2, 3, 4, 5]) == [0, 1]
    assert pool.match([1, 2, 3, 4]) == [0]
    assert pool.match([1, 2, 3]) == [0]
    assert pool.match([1, 2]) == []
    assert pool.match([1, 9, 3, 4, 5]) == []
    assert pool.match([1, 2, 9, 4, 5]) == [0]
    pool.release(blocks)
    assert pool.match([1, 2, 3, 4, 5]) == [0, 1], "cached blocks match too"
    pool.check([])


def test_part_of_a_written_block_can_be_copied() -> None:
    pool = BlockPool(8, 4)
    blocks = sealed(pool, [1, 2, 3, 4, 5, 6, 7, 8])
    assert pool.match_part([1, 2, 9], []) is None, "not written yet"
    pool.plan_step()
    assert pool.match_part([1, 2, 9], []) == (0, 2)
    assert pool.match_part([1, 2, 3, 4, 5, 6, 7, 8, 9], [0, 1]) is None
    assert pool.match_part([1, 2, 3, 4, 5, 6, 9, 9, 9], [0]) == (1, 2)
    assert pool.match_part([1, 2, 3, 4, 5, 6], [0]) == (1, 1), "the last token is computed"
    assert pool.match_part([1, 2, 3, 4, 5], [0]) is None
    assert pool.match_part([2, 2, 3], []) is None
    assert pool.match_part([5, 6, 7], []) is None, "it stands behind another beginning"
    pool.release(blocks)
    pool.take(7)
    assert pool.match_part([1, 2, 3, 4, 5, 6, 9], [0]) is None, "evicted"
    assert pool.match_part([1, 2, 9], []) == (0, 2)
    assert BlockPool(8, 4, prefix_caching=False).match_part([1, 2, 9], []) is None


def test_the_same_tokens_after_another_beginning_do_not_match() -> None:
    pool = BlockPool(8, 2)
    sealed(pool, [1, 2, 7, 8])
    assert pool.match([7, 8, 0]) == []
    sealed(pool, [3, 4])
    assert pool.match([3, 4, 7, 8, 0]) == [2]


class Colliding(int):
    """An integer whose hash says nothing."""

    def __hash__(self) -> int:
        return 0


def test_a_hit_is_checked_against_the_tokens_and_not_trusted_to_the_hash() -> None:
    pool = BlockPool(8, 2)
    sealed(pool, [Colliding(1), Colliding(2)])
    assert hash((0, (Colliding(1), Colliding(2)))) == hash((0, (Colliding(3), Colliding(4))))
    assert pool.match([Colliding(3), Colliding(4), Colliding(5)]) == []
    assert pool.match([Colliding(1), Colliding(2), Colliding(5)]) == [0]


def test_holding_cached_blocks_takes_them_out_of_what_is_available() -> None:
    pool = BlockPool(4, 2)
    blocks = sealed(pool, [1, 2, 3, 4])
    pool.release(blocks)
    hits = pool.match([1, 2, 3, 4, 5])
    assert (pool.num_idle(hits), pool.num_available) == (2, 4)
    pool.hold(hits)
    assert (pool.num_idle(hits), pool.num_available) == (0, 2)
    pool.hold(hits[:1])
    pool.check([[0, 1], [0]])


def test_the_least_recently_used_prefix_is_evicted_from_its_end() -> None:
    pool = BlockPool(4, 2)
    old, new = sealed(pool, [1, 2, 3, 4]), sealed(pool, [5, 6, 7, 8])
    pool.release(old)
    pool.release(new)
    assert pool.take(1) == [1]
    assert pool.match([1, 2, 3, 4, 0]) == [0]
    pool.hold([0])
    pool.release([0])  # used again: now younger than the other prefix
    assert pool.take(1) == [3]
    assert pool.match([5, 6, 7, 8, 0]) == [2]
    assert pool.take(2) == [2, 0]
    pool.check([[1], [3], [2, 0]])


def test_a_second_block_of_the_same_content_is_exchanged_once_it_is_written() -> None:
    pool = BlockPool(4, 2)
    first, second = table(*pool.take(1)), table(*pool.take(1))
    assert pool.seal(first, 0, [1, 2], written=False)
    assert not pool.seal(second, 0, [1, 2], written=False), "its own content is about to be written"
    assert list(second) == [1]
    assert pool.seal(second, 0, [1, 2], written=True)
    assert list(second) == [0]
    pool.check([first, second])
    assert pool.num_used == 1


def test_without_prefix_caching_nothing_is_published() -> None:
    pool = BlockPool(4, 2, prefix_caching=False)
    blocks = table(*pool.take(1))
    assert not pool.seal(blocks, 0, [1, 2], written=True)
    assert pool.match([1, 2, 3]) == []
    pool.release(blocks)
    assert pool.num_cached == 0


class Lives(RuleBasedStateMachine):
    """Random lives of sequences through the scheduler, over a pool small enough that blocks run out all the time."""

    def __init__(self) -> None:
        super().__init__()
        self.sequences: list[Sequence] = []
        self.serial = 0

    @initialize(num_blocks=st.integers(6, 14), caching=st.booleans(), budget=st.integers(4, 12))
    def build(self, num_blocks: int, caching: bool, budget: int) -> None:
        self.pool = BlockPool(num_blocks, 2, prefix_caching=caching)
        config = EngineConfig(max_sequences=4, token_budget=budget, prefix_caching=caching)
        self.scheduler = Scheduler(config, self.pool)
        self.stops = Stops()

    @rule(prompt=st.lists(st.integers(0, 1), min_size=1, max_size=7), max_tokens=st.integers(1, 5))
    def add(self, prompt: list[int], max_tokens: int) -> None:
        self.serial += 1
        request = Request(self.serial, tuple(prompt), SamplingParams(max_tokens=max_tokens))
        sequence = Sequence(request)
        self.sequences.append(sequence)
        self.scheduler.add(sequence)

    @rule(data=st.data())
    def step(self, data: st.DataObject) -> None:
        """A step, with made-up tokens and sometimes a draft that holds in part."""
        batch = self.scheduler.schedule()
        for sequence, _, stop in batch:
            sequence.computed = stop
            if stop < len(sequence.tokens):
                continue
            drafted = stop - len(sequence.tokens)
            accepted = sequence.draft[: data.draw(st.integers(0, drafted))]
            self.stops.accept(sequence, Sampled([*accepted, data.draw(st.integers(0, 1))]))
        for sequence in self.scheduler.update(batch):
            self.sequences.remove(sequence)
            assert len(sequence.blocks) == 0
        for sequence in self.scheduler.running:
            if sequence.pending == 1:
                draft = data.draw(st.lists(st.integers(0, 1), max_size=3))
                sequence.draft.extend(draft[: sequence.draft_room])

    @precondition(lambda self: self.sequences)
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        sequence = data.draw(st.sampled_from(self.sequences))
        self.sequences.remove(sequence)
        self.scheduler.abort(sequence)

    @invariant()
    def sound(self) -> None:
        if hasattr(self, "pool"):
            self.pool.check(sequence.blocks for sequence in self.sequences)
            for sequence in self.sequences:
                assert len(sequence.blocks) * 2 - sequence.computed < 2, "less than one block is wasted"

    def teardown(self) -> None:
        """Everything ends, and then nothing is held: free + cached = all."""
        if hasattr(self, "pool"):
            for _ in range(1000):
                if self.scheduler.idle:
                    break
                batch = self.scheduler.schedule()
                assert len(batch) or self.scheduler.idle, "nothing can run: a deadlock"
                for sequence, _, stop in batch:
                    sequence.computed = stop
                    if stop >= len(sequence.tokens):
                        self.stops.accept(sequence, Sampled([0]))
                self.scheduler.update(batch)
            assert self.scheduler.idle
            self.pool.check([])
            assert self.pool.num_available == self.pool.num_blocks


TestLives = Lives.TestCase
TestLives.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
