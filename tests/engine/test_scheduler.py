"""Scheduler: the slices of every step, exactly."""

from __future__ import annotations

import pytest

from engine.batch import Batch, Sampled
from engine.blocks import BlockPool
from engine.choices import ChoiceTree, Scoring
from engine.config import EngineConfig
from engine.request import FinishReason, Request, SamplingParams
from engine.scheduler import Scheduler
from engine.sequence import Sequence
from engine.stops import Stops


class Bench:
    """A scheduler, its pool, and a stand-in for the rest of the engine."""

    def __init__(
        self,
        *,
        num_blocks: int = 100,
        block_size: int = 4,
        max_sequences: int = 4,
        budget: int = 8,
        caching: bool = True,
    ) -> None:
        self.pool = BlockPool(num_blocks, block_size, prefix_caching=caching)
        config = EngineConfig(max_sequences=max_sequences, token_budget=budget, prefix_caching=caching)
        self.scheduler = Scheduler(config, self.pool)
        self.sequences: dict[str, Sequence] = {}

    def add(self, name: str, prompt: list[int], max_tokens: int = 100, owner: str | None = None) -> Sequence:
        sequence = Sequence(Request(name, tuple(prompt), SamplingParams(max_tokens=max_tokens), owner=owner))
        self.sequences[name] = sequence
        self.scheduler.add(sequence)
        return sequence

    def settle(self, batch: Batch, token: int = 7) -> list[str]:
        """Give every slice that ends a sequence's known tokens the same next token. Returns who finished."""
        for sequence, _, stop in batch:
            sequence.computed = stop
            if stop >= len(sequence.tokens):
                Stops().accept(sequence, Sampled([token]))
        return [str(sequence.request.id) for sequence in self.scheduler.update(batch)]

    def step(self) -> list[tuple[str, int, int]]:
        batch = self.scheduler.schedule()
        self.settle(batch)
        self.check()
        return names(batch)

    def check(self) -> None:
        self.pool.check(sequence.blocks for sequence in self.sequences.values())


def names(batch: Batch) -> list[tuple[str, int, int]]:
    return [(str(sequence.request.id), start, stop) for sequence, start, stop in batch]


def test_prompts_are_cut_by_the_budget_and_decodes_go_first() -> None:
    bench = Bench(budget=8)
    bench.add("a", [1] * 5)
    bench.add("b", [2] * 12)
    bench.add("c", [3] * 2)
    assert bench.step() == [("a", 0, 5), ("b", 0, 3)]
    assert bench.step() == [("a", 5, 6), ("b", 3, 10)]
    assert bench.step() == [("a", 6, 7), ("b", 10, 12), ("c", 0, 2)]
    assert bench.step() == [("a", 7, 8), ("b", 12, 13), ("c", 2, 3)]
    assert bench.scheduler.num_computed_tokens == 8 + 8 + 5 + 3


def test_no_more_than_max_sequences_run() -> None:
    bench = Bench(max_sequences=2, budget=100)
    for name in "abc":
        bench.add(name, [1, 2], max_tokens=2)
    assert bench.step() == [("a", 0, 2), ("b", 0, 2)]
    assert (bench.scheduler.num_running, bench.scheduler.num_waiting) == (2, 1)
    assert bench.step() == [("a", 2, 3), ("b", 2, 3)]
    assert bench.step() == [("c", 0, 2)]


def test_blocks_come_on_demand_and_go_at_the_end() -> None:
    bench = Bench(block_size=4, caching=False)
    sequence = bench.add("a", [1] * 4, max_tokens=3)
    bench.step()
    assert list(sequence.blocks) == [0]
    bench.step()
    assert list(sequence.blocks) == [0, 1]
    bench.step()
    assert sequence.finish_reason is FinishReason.LENGTH
    assert list(sequence.blocks) == []
    assert bench.pool.num_used == 0
    assert bench.scheduler.idle


def test_a_sequence_admitted_in_the_same_step_shares_the_beginning() -> None:
    bench = Bench(budget=100)
    beginning = [1, 2, 3, 4, 5, 6, 7, 8]
    one = bench.add("a", [*beginning, 9])
    two = bench.add("b", [*beginning, 10, 11])
    assert bench.step() == [("a", 0, 9), ("b", 8, 10)]
    assert (list(one.blocks), list(two.blocks)) == ([0, 1, 2], [0, 1, 3])
    assert (one.num_cached, two.num_cached) == (0, 8)
    assert (bench.scheduler.num_prompt_tokens, bench.scheduler.num_cached_tokens) == (19, 8)


def test_owners_share_neither_blocks_nor_their_beginnings() -> None:
    bench = Bench(budget=100)
    prompt = [1, 2, 3, 4, 5, 6, 7, 8, 9]
    for owner in ("ada", "bob", None):
        first = bench.add(f"{owner} 1", prompt, max_tokens=1, owner=owner)
        assert bench.step() == [(f"{owner} 1", 0, 9)]
        assert first.num_cached == 0
    for owner in ("ada", "bob", None):
        again = bench.add(f"{owner} 2", prompt, max_tokens=1, owner=owner)
        assert bench.step() == [(f"{owner} 2", 8, 9)]
        assert again.num_cached == 8
    other = bench.add("cleo", [1, 2, 3, 9], max_tokens=1, owner="cleo")
    assert bench.step() == [("cleo", 0, 4)]
    assert other.num_cached == 0


def test_what_is_shared_within_a_block_is_copied() -> None:
    bench = Bench(budget=100)
    bench.add("a", [1, 2, 3, 4, 5, 6, 7, 8], max_tokens=1)
    bench.add("b", [1, 2, 3, 4, 5, 6, 9])
    assert bench.step() == [("a", 0, 8), ("b", 4, 7)], "nothing to copy within the step that computes it"
    bench.add("c", [1, 2, 3, 4, 5, 6, 7, 9])
    batch = bench.scheduler.schedule()
    (source, target) = batch.copies[0]
    assert names(batch) == [("b", 7, 8), ("c", 7, 8)]
    assert (source, target) == (1, bench.sequences["c"].blocks[1])
    assert bench.sequences["c"].num_cached == 7
    bench.settle(batch)
    bench.check()


def test_output_is_found_by_a_later_prompt() -> None:
    bench = Bench(budget=100)
    bench.add("a", [1, 2, 3], max_tokens=3)
    for _ in range(3):
        bench.step()
    assert bench.scheduler.idle
    bench.add("b", [1, 2, 3, 7, 7])
    assert bench.step() == [("b", 4, 5)]


def test_a_whole_prompt_in_the_cache_still_computes_its_last_block() -> None:
    bench = Bench(budget=100)
    one = bench.add("a", [1] * 8)
    two = bench.add("b", [1] * 8)
    assert bench.step() == [("a", 0, 8), ("b", 4, 8)]
    assert (list(one.blocks), list(two.blocks)) == ([0, 1], [0, 2])
    assert bench.step() == [("a", 8, 9), ("b", 8, 9)]
    assert (list(one.blocks), list(two.blocks)) == ([0, 1, 3], [0, 1, 4]), "the copy is exchanged and free"
    assert bench.pool.num_used == 4


def test_the_youngest_is_preempted_and_comes_back_first() -> None:
    bench = Bench(num_blocks=6, block_size=2, budget=100, caching=False)
    bench.add("a", [1] * 4)
    bench.add("b", [2] * 4)
    bench.add("c", [3] * 2)
    assert bench.step() == [("a", 0, 4), ("b", 0, 4)], "a block for every running sequence stays free"
    assert bench.step() == [("a", 4, 5), ("b", 4, 5)]
    assert bench.step() == [("a", 5, 6), ("b", 5, 6)]
    assert bench.step() == [("a", 6, 7)], "b gave its blocks to a"
    assert bench.scheduler.num_preemptions == 1
    second = bench.sequences["b"]
    assert (second.computed, list(second.blocks), second.tokens) == (0, [], [2, 2, 2, 2, 7, 7, 7])
    assert (bench.scheduler.num_running, bench.scheduler.num_waiting) == (1, 2)
    bench.scheduler.abort(bench.sequences.pop("a"))
    assert bench.step() == [("b", 0, 7), ("c", 0, 2)]


def test_a_preempted_sequence_takes_its_cached_blocks_up_again() -> None:
    bench = Bench(num_blocks=6, block_size=2, budget=100)
    bench.add("a", [1] * 4)
    bench.add("b", [2] * 4)
    for _ in range(4):
        bench.step()
    assert bench.scheduler.num_preemptions == 1
    bench.scheduler.abort(bench.sequences.pop("a"))
    assert bench.step() == [("b", 4, 7)], "one of its blocks went to a, from the end"
    assert bench.scheduler.num_cached_tokens == 0, "counted at first admission only"


def test_a_sequence_may_preempt_itself() -> None:
    bench = Bench(num_blocks=4, block_size=2, budget=100, caching=False)
    bench.add("a", [1, 1])
    bench.add("b", [2, 2])
    assert bench.step() == [("a", 0, 2), ("b", 0, 2)]
    assert bench.step() == [("a", 2, 3), ("b", 2, 3)]
    assert bench.step() == [("a", 3, 4), ("b", 3, 4)]
    assert bench.step() == [("a", 4, 5)]
    bench.add("c", [3])
    assert bench.step() == [("a", 5, 6)], "the preempted one is first in line and does not fit"
    assert bench.step() == [("a", 6, 7)]
    assert bench.scheduler.num_preemptions == 1


def test_a_draft_is_computed_with_the_rest_and_its_rejected_blocks_come_back() -> None:
    bench = Bench(block_size=2, budget=100)
    sequence = bench.add("a", [1, 2, 3])
    bench.step()
    sequence.draft.extend([7, 8, 9, 10])
    batch = bench.scheduler.schedule()
    assert names(batch) == [("a", 3, 8)]
    assert [piece.num_logits for piece in batch] == [5]
    assert len(sequence.blocks) == 4
    sequence.computed = 8
    Stops().accept(sequence, Sampled([7, 20]))  # one draft token holds
    bench.scheduler.update(batch)
    assert (sequence.tokens, sequence.draft, sequence.computed) == ([1, 2, 3, 7, 7, 20], [], 5)
    assert len(sequence.blocks) == 3
    bench.check()
    assert bench.step() == [("a", 5, 6)]


def test_a_draft_is_given_up_before_anyone_is_preempted() -> None:
    bench = Bench(num_blocks=4, block_size=2, budget=100, caching=False)
    one = bench.add("a", [1, 1])
    bench.add("b", [2, 2])
    bench.step()
    one.draft.extend([5, 5, 5, 5])
    assert bench.step() == [("a", 2, 3), ("b", 2, 3)]
    assert bench.scheduler.num_preemptions == 0


def test_choices_walk_their_paths_and_recompute_nothing_shared() -> None:
    bench = Bench(budget=100)
    tree = ChoiceTree(((5, 6, 7), (5, 6, 8, 9), (5, 1), (3,)))
    sequence = Sequence(Request("a", (1, 2), choices=tree.choices), scoring=Scoring(tree))
    bench.scheduler.add(sequence)
    assert tree.paths == ((5, 6, 8),)
    batch = bench.scheduler.schedule()
    assert names(batch) == [("a", 0, 5)]
    assert [piece.num_logits for piece in batch] == [4]


def test_aborted_sequences_leave_at_once() -> None:
    bench = Bench(budget=100, max_sequences=1)
    running, waiting = bench.add("a", [1] * 6), bench.add("b", [2] * 6)
    bench.step()
    for name in "ab":
        bench.scheduler.abort(bench.sequences.pop(name))
    bench.check()
    assert bench.pool.num_used == 0
    assert {running.finish_reason, waiting.finish_reason} == {FinishReason.CANCELLED}
    assert bench.step() == []
    assert bench.scheduler.idle


@pytest.mark.parametrize("caching", [True, False])
def test_the_oldest_always_gets_on(caching: bool) -> None:
    bench = Bench(num_blocks=5, block_size=2, max_sequences=4, budget=6, caching=caching)
    for name in "abcd":
        bench.add(name, [1, ord(name)], max_tokens=9)
    finished: list[str] = []
    for _ in range(200):
        if bench.scheduler.idle:
            break
        batch = bench.scheduler.schedule()
        assert len(batch) > 0
        finished += bench.settle(batch)
        bench.check()
    assert finished == ["a", "b", "c", "d"]
    assert bench.scheduler.num_preemptions > 0
    assert bench.pool.num_available == 5
